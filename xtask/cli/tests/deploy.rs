//! Tests of workflows, images and manifests: all files and names that they refer to must exist. These workflows, images
//! and manifests never run on a developer's machine, so only these tests check them.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the names and contents of the files in `folder` whose names satisfy `wanted`.
fn files(folder: &str, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if wanted(&name) {
            found.push((name.clone(), read(format!("{folder}/{name}"))));
        }
    }
    assert!(!found.is_empty(), "{folder} holds none");
    found
}

/// Returns the keys in the first column of the tables below `heading`. A cell may contain several keys.
fn keys_below(reference: &str, heading: &str) -> BTreeSet<String> {
    let (_, rest) = reference.split_once(&format!("\n{heading}\n")).expect(heading);
    let section = rest.split("\n#").next().unwrap();
    let cells =
        section.lines().filter(|line| line.starts_with("| `")).filter_map(|line| line.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(String::from).collect()
}

/// Returns the literal block of a ConfigMap's `key: |`, without its indentation.
fn block(manifest: &str, key: &str) -> String {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != format!("{key}: |")).skip(1).peekable();
    let indent = lines.peek().expect("the block is empty").chars().take_while(|&c| c == ' ').count();
    lines
        .take_while(|line| line.trim().is_empty() || line.starts_with(&" ".repeat(indent)))
        .map(|line| format!("{}\n", line.get(indent..).unwrap_or("")))
        .collect()
}

#[test]
fn the_pods_configuration_has_only_keys_that_the_server_knows() {
    let reference = read("docs/src/run/server.md");
    let known = keys_below(&reference, "## server_config.toml");
    assert!(known.len() > 40 && known.contains("drain_s"), "{known:?}");
    let config: toml::Table =
        block(&read("deploy/kubernetes/config.yaml"), "server_config.toml").parse().unwrap();
    assert!(config.len() > 5, "{config:?}");
    for key in config.keys().filter(|key| *key != "workloads") {
        assert!(known.contains(key), "{key} is not a key of server_config.toml");
    }
    let workloads = config["workloads"].as_table().unwrap();
    for (name, workload) in workloads {
        for (key, threads) in workload.as_table().unwrap() {
            assert!(["decode_threads", "prefill_threads"].contains(&key.as_str()), "workload {name}: {key}");
            assert!((1..=512).contains(&threads.as_integer().unwrap()), "workload {name}: {key} = {threads}");
        }
    }

    // Pods must mount the files listed in the configuration, and must allow more time than the server needs to
    // drain.
    let drain = config["drain_s"].as_float().unwrap();
    for pool in ["portable", "native"] {
        let pods = read(format!("deploy/kubernetes/{pool}.yaml"));
        let grace = number_after(&pods, "terminationGracePeriodSeconds: ");
        let before = number_after(&pods, "seconds: ");
        assert!(grace > drain + before, "{pool}: {grace} s are not more than {before} s and {drain} s");
        for key in ["model", "api_key_file"] {
            let path = Path::new(config[key].as_str().unwrap());
            let mount = format!("mountPath: {}, readOnly: true", path.parent().unwrap().display());
            assert!(pods.contains(&mount), "{pool}: no {mount}");
        }
        for (key, name) in [("listen", "http"), ("health_listen", "health")] {
            let port = config[key].as_str().unwrap().rsplit(':').next().unwrap();
            let port = format!("- name: {name}\n              containerPort: {port}\n");
            assert!(pods.contains(&port), "{pool}: not {port}");
        }
        // Clients can only reach the other port, so they cannot make the probes fail.
        let probes: Vec<&str> = pods.lines().filter(|line| line.contains("httpGet:")).collect();
        assert_eq!(probes.len(), 3, "{pool}");
        assert!(probes.iter().all(|probe| probe.contains("{ path: /health, port: health }")), "{pool}");
    }
}

fn number_after(text: &str, key: &str) -> f64 {
    let line =
        text.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
    line.parse().unwrap()
}

#[test]
fn pods_may_do_nothing_that_they_need_not() {
    for name in ["portable", "native", "build"] {
        let pods = read(format!("deploy/kubernetes/{name}.yaml"));
        for line in [
            "runAsNonRoot: true",
            "runAsUser: 65532",
            "type: RuntimeDefault",
            "allowPrivilegeEscalation: false",
            "readOnlyRootFilesystem: true",
            "drop: [ALL]",
            "automountServiceAccountToken: false",
        ] {
            assert!(pods.lines().any(|found| found.trim() == line), "{name}: no {line}");
        }
    }
}

/// Returns the first `key:` block of a manifest, including that line but no comments.
fn indented(manifest: &str, key: &str) -> Vec<String> {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != key);
    let first = lines.next().unwrap_or_else(|| panic!("no {key}"));
    let indent = first.len() - first.trim_start().len();
    let inside = lines.take_while(|line| line.len() - line.trim_start().len() > indent);
    inside.map(str::trim).filter(|line| !line.starts_with('#')).map(String::from).collect()
}

/// Tuned settings only apply to machines with the same CPU quota, so the Job needs the pods' quota. Only the Job may
/// write to the store.
#[test]
fn a_job_tunes_for_the_pods_that_install_what_it_publishes() {
    let [build, native, install] =
        ["build", "native", "from-store"].map(|name| read(format!("deploy/kubernetes/{name}.yaml")));
    let resources = indented(&native, "resources:");
    assert!(resources.len() >= 6, "{resources:?}");
    for (name, pods) in [("build", &build), ("from-store", &install)] {
        assert_eq!(indented(pods, "resources:"), resources, "{name}");
        assert!(
            pods.contains("anneal.dev/store: \"true\""),
            "{name}: the network policy blocks its connections"
        );
    }
    for key in ["nodeSelector:", "tolerations:"] {
        assert_eq!(indented(&build, key), indented(&native, key));
    }
    assert!(build.contains("name: anneal-store-writer") && !install.contains("anneal-store-writer"));
}

#[test]
fn what_is_applied_is_there() {
    let list = read("deploy/kubernetes/kustomization.yaml");
    let named: Vec<&str> = list
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- "))
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    assert!(named.len() > 3, "{named:?}");
    let patches =
        list.lines().filter_map(|line| line.trim_start_matches(['#', ' ']).strip_prefix("- path: "));
    for name in named.into_iter().chain(patches).chain(["build.yaml"]) {
        assert!(root().join("deploy/kubernetes").join(name).exists(), "{name} does not exist");
    }
}

/// A node cannot pull an image without a registry. The kustomization's list adds the registry to manifests, and the
/// Job's command adds it to the Job.
#[test]
fn every_image_gets_the_name_of_a_registry() {
    let list = read("deploy/kubernetes/kustomization.yaml");
    let command = |text: &str| {
        let start = text.find("sed \"s,zen4,").expect("no command for the Job");
        text[start..].split(" deploy/kubernetes/build.yaml").next().unwrap().to_string()
    };
    let job = read("deploy/kubernetes/build.yaml");
    let told = command(&job);
    assert_eq!(command(&read("docs/src/build/containers.md")), told);
    let mut short = 0;
    for (name, text) in files("deploy/kubernetes", |name| name.ends_with(".yaml")) {
        for image in text.lines().filter_map(|line| line.trim().strip_prefix("image: ")) {
            let (path, tag) = image.split_once(':').unwrap_or_else(|| panic!("{name}: {image} has no tag"));
            if path.contains('/') {
                continue;
            }
            short += 1;
            let listed = format!("  - name: {path}\n    newName: {path}\n    newTag: {tag}\n");
            assert!(list.contains(&listed), "{name}: {path}:{tag} is not in kustomization.yaml");
            let named = format!("s,image: {path}:.*,image: $REGISTRY/{path}:{tag},");
            assert!(name != "build.yaml" || told.contains(&named), "{name}: {told} does not name {path}");
        }
    }
    assert!(short >= 4, "{short}");
}

#[test]
fn images_run_as_a_number_and_are_healthy_by_a_program_they_hold() {
    for (name, text) in files("deploy/containers", |name| name.starts_with("Dockerfile")) {
        let last = |word: &str| text.lines().filter_map(|line| line.strip_prefix(word)).next_back();
        let user = last("USER ").unwrap_or_else(|| panic!("{name}: no USER"));
        let numeric = user.split(':').all(|part| part.parse::<u32>().is_ok_and(|id| id != 0));
        assert!(numeric, "{name}: USER {user} is not a number, or is root");
        assert_eq!(last("STOPSIGNAL "), Some("SIGTERM"), "{name}");
        // The builder image does not run a server.
        assert!(
            name.ends_with("builder") || text.contains("CMD [\"/usr/local/bin/anneal\", \"top\", \"--once\""),
            "{name}: no health check"
        );
        assert!(
            last("CMD ").is_some_and(|command| command.starts_with('[')),
            "{name}: the image has no shell for its CMD"
        );
    }
}

/// A cache could put objects from another run into the release.
#[test]
fn a_release_takes_nothing_from_a_cache() {
    let release = read(".github/workflows/release.yml");
    let archive = read(".github/workflows/archive.yml");
    for word in ["actions/cache", "ccache"] {
        assert!(!release.contains(word) && !archive.contains(word), "release.yml or archive.yml: {word}");
    }
}

/// An attacker could replace an unattested checksum, or the script that checks it, together with the archive.
#[test]
fn a_release_attests_all_that_is_downloaded_and_tries_the_package() {
    let release = read(".github/workflows/release.yml");
    for file in ["*.tar.zst", "*.tar.gz", "*.deb", "*.whl", "*.sha256", "install.sh"] {
        let subject = format!("in/*/dist/{file}");
        assert!(release.lines().any(|line| line.trim() == subject), "{subject} is not attested");
    }
    assert!(read(".github/scripts/smoke-in.sh").contains("/scripts/smoke-deb.sh"));
}

/// cuda-portable has never been built in full, and images are pushed only if the repository specifies a registry.
#[test]
fn a_draft_waits_for_nothing_that_may_fail_and_nothing_is_pushed_by_default() {
    let release = read(".github/workflows/release.yml");
    let (_, draft) = release.split_once("\n  draft:\n").unwrap();
    assert!(draft.contains("needs: attest\n"), "{draft}");
    for job in ["attest", "old", "draft"] {
        let (_, text) = release.split_once(&format!("\n  {job}:\n")).unwrap();
        let needs = text.lines().find_map(|line| line.trim().strip_prefix("needs: ")).unwrap();
        assert!(!needs.contains("cuda"), "{job} needs {needs}");
    }
    let (_, images) = release.split_once("\n  images:\n").unwrap();
    assert!(images.lines().take(4).any(|line| line.trim() == "if: vars.IMAGE_REGISTRY != ''"), "{images}");
}

/// Secrets in a checkout must enter neither the repository nor an image's history.
#[test]
fn keys_are_ignored() {
    let lines = |name: &str| read(name).lines().map(String::from).collect::<Vec<_>>();
    let (git, docker) = (lines(".gitignore"), lines(".dockerignore"));
    for pattern in ["*.env", "api-keys*", "minisign.key", "server_config.toml"] {
        assert!(git.iter().any(|line| line == pattern), ".gitignore: no {pattern}");
        // Without `**/` the pattern would only match files at the top.
        let anywhere = format!("**/{pattern}");
        assert!(docker.contains(&anywhere), ".dockerignore: no {anywhere}");
    }
}

#[test]
fn workflows_ask_for_little_and_run_what_is_there() {
    let mut scripts = BTreeSet::new();
    for (name, text) in files(".github/workflows", |name| name.ends_with(".yml")) {
        assert!(text.lines().any(|line| line == "permissions: {}"), "{name}: permissions for every job");
        assert!(
            !text.contains("pull_request_target"),
            "{name}: untrusted code would run with write permissions"
        );
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let step = line.trim_start_matches("- ");
            // A workflow of this repository always belongs to the same commit.
            if let Some(own) = step.strip_prefix("uses: ./") {
                assert!(root().join(own).is_file(), "{name}: {own} does not exist");
            } else if let Some(action) = step.strip_prefix("uses: ") {
                let commit = action.split(['@', ' ']).nth(1).unwrap_or("");
                let pinned = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
                assert!(
                    pinned && action.contains(" # v"),
                    "{name}: {action}: no commit, or no comment with its version"
                );
            }
            // GitHub substitutes expressions in a command before the shell parses the command. Expressions in other
            // keys are safe.
            let key = step.split_once(": ").map_or("", |(key, _)| key);
            let is_value = key != "run" && !key.is_empty() && !key.contains(char::is_whitespace);
            assert!(!step.contains("${{") || is_value, "{name}: {step}");
            let words =
                line.split_whitespace().filter(|word| word.starts_with('.') && !step.starts_with("uses: "));
            scripts.extend(words.map(String::from));
        }
    }
    assert!(scripts.len() > 4, "{scripts:?}");
    scripts.extend(["deploy/containers/rootfs.sh", "deploy/containers/run-rootfs.sh"].map(String::from));
    for script in scripts {
        let found = std::fs::metadata(root().join(&script)).unwrap_or_else(|why| panic!("{script}: {why}"));
        assert!(found.permissions().mode() & 0o111 == 0o111, "{script} is not executable");
    }
}

/// The script checks the syntax of what it writes; words that could end a string of Ruby or bash are refused.
#[test]
fn the_formula_and_the_pkgbuild_name_the_archive_and_its_digest() {
    let temp = tempfile::tempdir().unwrap();
    let name = "anneal-1.0.0-rc.1-x86_64-unknown-linux-gnu-universal";
    let archive = temp.path().join(format!("{name}.tar.zst"));
    std::fs::write(&archive, "packed").unwrap();
    let fill = |archive: &Path, address: &str| {
        Command::new(root().join(".github/scripts/packages.sh"))
            .arg(archive)
            .args(["https://example.org/", address])
            .arg(temp.path().join("out"))
            .output()
            .unwrap()
    };
    let filled = fill(&archive, "https://example.org/v1/");
    assert!(filled.status.success(), "{}", String::from_utf8_lossy(&filled.stderr));
    let digest = build_info::Sha256::of("packed");
    let address = format!("\"https://example.org/v1/{name}.tar.zst\"");
    for (file, version) in [("anneal.rb", "version \"1.0.0-rc.1\"\n"), ("PKGBUILD", "pkgver=1.0.0rc.1\n")] {
        let text = std::fs::read_to_string(temp.path().join("out").join(file)).unwrap();
        for told in [address.as_str(), version, digest.to_string().as_str()] {
            assert!(text.contains(told), "no {told} in {text}");
        }
    }
    for (archive, address) in
        [(archive.clone(), "https://example.org/\"$(x)"), (temp.path().join("a.tar.zst"), "x")]
    {
        assert_eq!(fill(&archive, address).status.code(), Some(1), "{address}");
    }
}

/// Runs the functions of the `PKGBUILD` as makepkg does, with tar in place of bsdtar.
#[test]
fn the_pkgbuild_puts_each_file_where_pacman_expects_it() {
    let temp = tempfile::tempdir().unwrap();
    let [out, from, to] = ["out", "src", "pkg"].map(|name| temp.path().join(name));
    let name = "anneal-1.0.0-x86_64-unknown-linux-gnu-universal";
    let packed = temp.path().join(name);
    let files = [
        "SHA256SUMS",
        "bin/anneal",
        "lib/libggml-cpu-x64.so",
        "share/doc/anneal/LICENSE",
        "share/man/man1/anneal.1",
        "share/zsh/site-functions/_anneal",
    ];
    for file in files {
        std::fs::create_dir_all(packed.join(file).parent().unwrap()).unwrap();
        std::fs::write(packed.join(file), file).unwrap();
    }
    let archive = temp.path().join(format!("{name}.tar.gz"));
    run(Command::new("tar").arg("-C").arg(temp.path()).arg("-czf").arg(&archive).arg(name));
    run(Command::new(root().join(".github/scripts/packages.sh"))
        .arg(&archive)
        .args(["https://example.org", "https://example.org/v1"])
        .arg(&out));
    for folder in [&from, &to] {
        std::fs::create_dir(folder).unwrap();
    }
    // makepkg links each source into the folder in which the functions run, and does not unpack it if `noextract` names
    // the source.
    std::os::unix::fs::symlink(&archive, from.join(archive.file_name().unwrap())).unwrap();
    let script = "bsdtar() { tar \"$@\"; }\nset -eu\n. \"$1\"\n[ \"${noextract[0]}\" = \"${source[0]##*/}\" ]\n\
                  prepare\npackage";
    run(Command::new("bash")
        .args(["-c", script, "makepkg"])
        .arg(out.join("PKGBUILD"))
        .current_dir(&from)
        .env("srcdir", &from)
        .env("pkgdir", &to));
    let found = run(Command::new("find").args([".", "!", "-type", "d"]).current_dir(&to));
    let found = String::from_utf8(found.stdout).unwrap();
    let found: BTreeSet<&str> = found.lines().collect();
    let library = format!("./usr/lib/anneal/{name}/lib/libggml-cpu-x64.so");
    let program = format!("./usr/lib/anneal/{name}/bin/anneal");
    let expected = [
        program.as_str(),
        library.as_str(),
        "./usr/bin/anneal",
        "./usr/share/doc/anneal/LICENSE",
        "./usr/share/licenses/anneal-bin/LICENSE",
        "./usr/share/man/man1/anneal.1",
        "./usr/share/zsh/site-functions/_anneal",
    ];
    assert_eq!(found, BTreeSet::from(expected));
    // Both links lead to a file in the package.
    for (link, text) in [(expected[2], "bin/anneal"), (expected[4], "share/doc/anneal/LICENSE")] {
        assert!(to.join(link).symlink_metadata().unwrap().is_symlink(), "{link}");
        assert_eq!(std::fs::read_to_string(to.join(link)).unwrap(), text, "{link}");
    }
}

/// Runs a command that must succeed.
fn run(command: &mut Command) -> std::process::Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
