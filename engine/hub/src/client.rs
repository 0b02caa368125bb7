//! Client of the hub, with the cache of downloaded files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use gguf::GgufFile;
use hf_hub::api::sync::{Api, ApiBuilder, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use crate::choose::{ModelFiles, choose};
use crate::error::Error;
use crate::listing::{self, Listing};
use crate::name::Name;
use crate::options::{HubOptions, Watch};
use crate::place::{CachedRepository, Folders};
use crate::{request, transfer};

/// Maximum time to wait for the hub when the cache already has a usable model.
const SHORT: Duration = Duration::from_secs(5);

/// Model on the local disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// Path of the model file, or of its first part.
    pub path: PathBuf,
    /// Path of the file in its repository.
    pub name: String,
    /// Number of bytes that this call downloaded. 0 if the model was already in the cache.
    pub fetched: u64,
}

/// Client of the hub, with the cache of downloaded files.
pub struct Hub {
    options: HubOptions,
    api: Api,
}

impl Hub {
    /// Creates a client from `options`.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub fn new(options: HubOptions) -> Result<Self, Error> {
        let token = options.token.clone();
        let api = ApiBuilder::from_cache(Cache::new(options.folder.clone()))
            .with_endpoint(options.endpoint.clone())
            .with_user_agent("anneal", env!("CARGO_PKG_VERSION"))
            .with_progress(false)
            .with_token(token)
            .build()
            .map_err(|why| Error::Client { why: why.to_string() })?;
        Ok(Hub { options, api })
    }

    /// Returns the model `name`. Downloads the files that are not in the cache, and checks the GGUF headers.
    ///
    /// # Errors
    /// See [`Error`]. An interrupted download stays on disk, and the next call resumes it.
    pub fn get(&self, name: &Name, watch: &mut dyn Watch) -> Result<LocalModel, Error> {
        let place = CachedRepository::new(Folders::new(&self.options.folder, name));
        let found = if self.options.offline {
            self.in_cache(name, &place)?
        } else {
            let cached = self.in_cache(name, &place);
            match self.list(name, cached.is_ok()) {
                Ok(listing) => self.fetch(name, &place, &listing, watch)?,
                // Falls back to the cached model only after a temporary error. A refusal by the hub is always reported.
                Err(error) if error.is_temporary() => match cached {
                    Ok(found) => {
                        let why = error.to_string();
                        // Only the first line is shown, because the hint does not apply.
                        let why = why.lines().next().unwrap_or_default();
                        watch.say(&format!("using the cached model: {why}"));
                        found
                    }
                    Err(_) => return Err(error),
                },
                Err(error) => return Err(error),
            }
        };
        check(&found.path)?;
        Ok(found)
    }

    fn repo(&self, name: &Name) -> ApiRepo {
        self.api.repo(Repo::with_revision(name.repo(), RepoType::Model, name.revision().to_string()))
    }

    /// Lists the repository. If the cache has a usable model (`is_cached`), makes only one short attempt.
    fn list(&self, name: &Name, is_cached: bool) -> Result<Listing, Error> {
        let mut options = self.options.clone();
        if is_cached {
            options.patience.tries = 1;
            options.patience.silence = options.patience.silence.min(SHORT);
        }
        request::list(&self.repo(name), name, &options)
    }

    /// Downloads the files that `name` selects from the hub's `listing`.
    fn fetch(
        &self,
        name: &Name,
        place: &CachedRepository,
        listing: &Listing,
        watch: &mut dyn Watch,
    ) -> Result<LocalModel, Error> {
        let choice = chosen(name, &listing.files)?;
        let mut fetched = 0;
        for file in &choice.files {
            if place.has(&listing.commit, file) {
                continue;
            }
            // A fixed commit ensures that all parts of a model match, even if the branch moves meanwhile.
            let commit = Repo::with_revision(name.repo(), RepoType::Model, listing.commit.clone());
            let from = transfer::From { repo: &self.api.repo(commit), name, options: &self.options };
            fetched += transfer::fetch(&from, place, file, watch)?;
            place.link(&listing.commit, file)?;
        }
        place.point(name.revision(), &listing.commit)?;
        Ok(found(place, &listing.commit, &choice, fetched))
    }

    /// Finds the files that `name` selects in the cache.
    fn in_cache(&self, name: &Name, place: &CachedRepository) -> Result<LocalModel, Error> {
        let commit = place.commit(name.revision()).ok_or_else(|| Error::NotInCache {
            name: name.to_string(),
            folder: place.folder().to_path_buf(),
        })?;
        let choice = chosen(name, &place.files(&commit))?;
        Ok(found(place, &commit, &choice, 0))
    }
}

fn chosen(name: &Name, files: &[listing::HubFile]) -> Result<ModelFiles, Error> {
    choose(files, name.file()).map_err(|why| Error::NoFile { name: name.to_string(), why })
}

fn found(place: &CachedRepository, commit: &str, choice: &ModelFiles, fetched: u64) -> LocalModel {
    let first = &choice.files[0].path;
    LocalModel { path: place.pointer(commit, first), name: first.clone(), fetched }
}

/// Checks the headers of all parts, so that llama.cpp's parser never sees a malformed file.
fn check(path: &Path) -> Result<(), Error> {
    let bad = |source| Error::Bad { source };
    GgufFile::open(path).map_err(bad)?.other_parts().map_err(bad)?;
    Ok(())
}
