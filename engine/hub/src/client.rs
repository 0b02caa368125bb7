//! The hub, and the cache of what was fetched from it.

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

/// How long the hub may say nothing where there is something to do without it.
const SHORT: Duration = Duration::from_secs(5);

/// A model that is on the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// The file, the first of several.
    pub path: PathBuf,
    /// Its name in the repository.
    pub name: String,
    /// Bytes that came over the network.
    pub fetched: u64,
}

/// The hub, and the cache of what was fetched from it.
pub struct Hub {
    options: HubOptions,
    api: Api,
}

impl Hub {
    /// The hub as `options` say.
    ///
    /// # Errors
    /// Where no client can be made of them.
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

    /// The model `name`, fetched where it is not there already, and checked.
    ///
    /// # Errors
    /// See [`Error`]; what was fetched of a file stays, and the next call goes on with it.
    pub fn get(&self, name: &Name, watch: &mut dyn Watch) -> Result<LocalModel, Error> {
        let place = CachedRepository::new(Folders::new(&self.options.folder, name));
        let found = if self.options.offline {
            self.in_cache(name, &place)?
        } else {
            let cached = self.in_cache(name, &place);
            match self.list(name, cached.is_ok()) {
                Ok(listing) => self.fetch(name, &place, &listing, watch)?,
                // Better an older one than none; what is refused is refused.
                Err(error) if error.is_temporary() => match cached {
                    Ok(found) => {
                        watch.say(&format!("{error}; what is in the cache is used"));
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

    /// What the hub has; nobody waits long for it who has a model already.
    fn list(&self, name: &Name, is_cached: bool) -> Result<Listing, Error> {
        let mut options = self.options.clone();
        if is_cached {
            options.patience.tries = 1;
            options.patience.silence = options.patience.silence.min(SHORT);
        }
        request::list(&self.repo(name), name, &options)
    }

    /// The files that `name` says, out of those in the hub's `listing`.
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
            // By the commit: the parts of a model are of one age, whatever happens meanwhile.
            let commit = Repo::with_revision(name.repo(), RepoType::Model, listing.commit.clone());
            let from = transfer::From { repo: &self.api.repo(commit), name, options: &self.options };
            fetched += transfer::fetch(&from, place, file, watch)?;
            place.link(&listing.commit, file)?;
        }
        place.point(name.revision(), &listing.commit)?;
        Ok(found(place, &listing.commit, &choice, fetched))
    }

    /// The files that `name` says, out of those in the cache.
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

/// What llama.cpp's parser is spared, in all parts.
fn check(path: &Path) -> Result<(), Error> {
    let bad = |source| Error::Bad { source };
    GgufFile::open(path).map_err(bad)?.other_parts().map_err(bad)?;
    Ok(())
}
