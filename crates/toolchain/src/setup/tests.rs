use super::*;
use crate::testing::Machine;

/// Console that records the messages and answers questions with `yes`.
#[derive(Default)]
struct Listener {
    yes: bool,
    /// Number of commands after which ctrl-C is typed; 0 types it at the question.
    stop_after: Option<usize>,
    asked: usize,
    notes: Vec<String>,
    commands: Vec<String>,
}

impl Console for Listener {
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_string());
    }

    fn command(&mut self, step: &InstallStep) {
        self.commands.push(step.to_string());
    }

    fn output(&mut self, _line: &str) {}

    fn confirm(&mut self, _plan: &SetupPlan) -> bool {
        self.asked += 1;
        self.yes
    }

    fn stopped(&self) -> bool {
        self.stop_after == Some(self.commands.len())
    }
}

const GCC: &str = "gcc (Debian 12.2.0-14) 12.2.0\nCopyright (C) 2022 Free Software Foundation, Inc.";

/// Creates a Debian with only gcc, used by `uid`. apt's lists are empty until `apt-get update`. `apt-get install`
/// puts fake tools in place for known packages and fails for others.
fn debian(uid: u32) -> Machine {
    let machine = Machine::new();
    let root = machine.root().display().to_string();
    machine.file("etc/os-release", "ID=debian\n");
    machine.tool("usr/bin/gcc", GCC);
    machine.tool("usr/bin/g++", GCC);
    machine.tool("usr/bin/id", &uid.to_string());
    machine.link("usr/bin/env", "/usr/bin/env");
    machine.script("usr/bin/apt-cache", &format!(
        "test -e '{root}/updated' || exit 0\ncase $1 in search) cat '{root}/index';; policy) echo '  Candidate: 3.25.1-1';; esac",
    ));
    machine.file("index", "clang-22 -\nlld-22 -\nlibclang1-22 -\nlibclang-common-22-dev -\n");
    machine.script("usr/bin/apt-get", &format!(
        r#"PATH=/usr/bin:/bin
        cd '{root}'
        tool() {{ printf '#!/bin/sh\necho "%s"\n' "$2" > "usr/bin/$1"; chmod +x "usr/bin/$1"; }}
        [ "$1" = update ] && {{ touch updated; exit 0; }}
        for package; do
            grep -qx -- "$package" broken 2>/dev/null && {{ echo "E: Unable to locate package $package"; exit 100; }}
        done
        for package; do case $package in
            cmake) tool cmake 'cmake version 3.25.1';;
            ninja-build) tool ninja 1.11.1;;
            clang-22) tool clang-22 'clang version 22.1.8'; tool clang++-22 'clang version 22.1.8';;
            lld-22) tool ld.lld-22 'LLD 22.1.8';;
            libclang1-22) mkdir -p usr/lib/llvm-22/lib/clang/22/include
                touch usr/lib/llvm-22/lib/libclang-22.so.22 usr/lib/llvm-22/lib/clang/22/include/stddef.h;;
        esac; done"#,
    ));
    machine
}

fn look(machine: &Machine) -> Toolchain {
    discover(&machine.search(), None)
}

fn ensure_on(
    machine: &Machine,
    consent: Consent,
    listener: &mut Listener,
) -> (Toolchain, Result<SetupOutcome, SetupError>) {
    let search = machine.search();
    let mut toolchain = look(machine);
    let outcome = ensure(&Needs::native(), &mut toolchain, &search, None, consent, listener);
    (toolchain, outcome)
}

#[test]
fn a_bare_machine_is_made_ready() {
    let machine = debian(0);
    let mut listener = Listener::default();
    let (toolchain, outcome) = ensure_on(&machine, Consent::Given, &mut listener);
    assert_eq!(outcome.unwrap(), SetupOutcome::Installed, "{:?}", listener.notes);
    assert_eq!(toolchain.compilers[0].version.major, 22);
    assert_eq!(toolchain, look(&machine), "what is given back is what is there");
    assert_eq!(
        listener.commands.len(),
        3,
        "the lists, what is required, what is recommended: {:?}",
        listener.commands
    );
    assert!(listener.commands[2].ends_with("clang-22 lld-22"), "chosen from the lists just read");
    assert_eq!(listener.asked, 0);

    let (_, again) = ensure_on(&machine, Consent::Withheld, &mut listener);
    assert_eq!(again.unwrap(), SetupOutcome::Ready);
}

#[test]
fn nothing_changes_without_consent_or_rights() {
    // User, consent, answer at the terminal, and part of the error.
    let cases = [
        (
            0,
            Consent::Withheld,
            false,
            "hint: add --yes, or run this command:\n  apt-get update && env DEBIAN_FRONTEND",
        ),
        (0, Consent::Ask, false, "nothing was installed\nhint: run this command:\n  apt-get update"),
        (1000, Consent::Given, true, "sudo is missing\nhint: run this command as root:\n  apt-get update"),
        (1000, Consent::Ask, true, "sudo is missing\nhint: run this command as root:\n  apt-get update"),
    ];
    for (uid, consent, yes, expected) in cases {
        let machine = debian(uid);
        let before = look(&machine);
        let mut listener = Listener { yes, ..Listener::default() };
        let (toolchain, outcome) = ensure_on(&machine, consent, &mut listener);
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains("missing: cmake 3.24 or later, ninja, libclang"), "{error}");
        assert_eq!(listener.commands, [""; 0], "{uid} {consent:?}");
        assert_eq!((&toolchain, look(&machine)), (&before, before.clone()));
    }
}

#[test]
fn sudo_is_used_where_it_asks_for_nothing_or_can_ask() {
    // True if `sudo -n true` succeeds, and the consent. The consent determines if a terminal for typing the password
    // exists.
    for (passwordless, consent) in [(true, Consent::Given), (false, Consent::Ask)] {
        let machine = debian(1000);
        let refuse = if passwordless { "shift" } else { "exit 1" };
        machine.script("usr/bin/sudo", &format!("[ \"$1\" = -n ] && {{ {refuse}; }}\nexec \"$@\""));
        machine.link("usr/bin/true", "/bin/true");
        let mut listener = Listener { yes: true, ..Listener::default() };
        let (_, outcome) = ensure_on(&machine, consent, &mut listener);
        assert_eq!(outcome.unwrap(), SetupOutcome::Installed);
        assert!(
            listener.commands.iter().all(|command| command.starts_with("sudo ")),
            "{:?}",
            listener.commands
        );
        assert_eq!(listener.asked, usize::from(consent == Consent::Ask));
    }
}

#[test]
fn gcc_does_where_clang_cannot_be_had() {
    let machine = debian(0);
    machine.file("broken", "clang-22\n");
    let mut listener = Listener::default();
    let (toolchain, outcome) = ensure_on(&machine, Consent::Given, &mut listener);
    let Ok(SetupOutcome::WithoutRecommended { plan, declined: None }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(plan.recommended, [Requirement::Clang, Requirement::Lld]);
    assert!(toolchain.cmake.is_some() && toolchain.ninja.is_some());
    let notes = listener.notes.join("\n");
    assert!(notes.contains("Unable to locate package clang-22"), "{notes}");
    assert!(notes.contains("1.4 to 1.56 times as fast"), "{notes}");

    // Without a terminal, the next build does not stop for the recommended tools either.
    let (_, outcome) = ensure_on(&machine, Consent::Withheld, &mut Listener::default());
    let declined = Some(Declined::NobodyToAsk);
    assert!(
        matches!(&outcome, Ok(SetupOutcome::WithoutRecommended { declined: why, .. }) if *why == declined),
        "{outcome:?}"
    );
}

#[test]
fn a_failed_installation_says_why() {
    let machine = debian(0);
    machine.file("broken", "ninja-build\n");
    let (_, outcome) = ensure_on(&machine, Consent::Given, &mut Listener::default());
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("cannot install cmake 3.24 or later, ninja"), "{error}");
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    assert!(cause.contains("E: Unable to locate package ninja-build"), "{cause}");

    let machine = debian(0);
    machine.script(
        "usr/bin/apt-get",
        "echo \"W: Failed to fetch http://x  Temporary failure resolving 'x'\"; [ $1 = update ]",
    );
    let mut listener = Listener::default();
    let (_, outcome) = ensure_on(&machine, Consent::Given, &mut listener);
    assert!(listener.notes[0].contains("the package server cannot be reached\n"), "{:?}", listener.notes);
    assert!(
        listener.notes[0].contains("\ncontinuing with the existing package lists\nhint: check the network"),
        "{:?}",
        listener.notes
    );
    let cause = std::error::Error::source(&outcome.unwrap_err()).map(ToString::to_string).unwrap_or_default();
    assert!(
        cause.contains("the package server cannot be reached\n")
            && cause.contains("\nhint: check the network"),
        "{cause}"
    );
}

#[test]
fn ctrl_c_ends_it_and_nothing_more_is_run() {
    // The command ends with the signal even if this test is a background job of a shell, whose children inherit an
    // ignored SIGINT.
    let dies = "/usr/bin/env --default-signal=INT /bin/sh -c : && exec /usr/bin/env --default-signal=INT /bin/sh -c 'kill -INT $$'\n\
                kill -INT $$";
    // Command of apt-get, time at which ctrl-C is noticed, and number of commands that ran.
    let cases = [
        ("exit 0", Some(0), 0),
        ("exit 0", Some(1), 1),
        ("exit 1", Some(1), 1),
        (dies, None, 1),
        ("exit 130", None, 1),
    ];
    for (apt_get, stop_after, expected) in cases {
        let machine = debian(0);
        machine.script("usr/bin/apt-get", apt_get);
        let mut listener = Listener { yes: true, stop_after, ..Listener::default() };
        let (_, outcome) = ensure_on(&machine, Consent::Ask, &mut listener);
        let error = outcome.unwrap_err();
        assert!(matches!(error, SetupError::Stopped { .. }), "{apt_get} {stop_after:?}: {error}");
        assert_eq!(listener.commands.len(), expected, "{apt_get} {stop_after:?}: {:?}", listener.commands);
    }
}

#[test]
fn without_a_manager_it_says_what_to_install_by_hand() {
    let machine = Machine::new();
    machine.tool("usr/bin/gcc", GCC);
    machine.tool("usr/bin/g++", GCC);
    let (_, outcome) = ensure_on(&machine, Consent::Given, &mut Listener::default());
    let error = outcome.unwrap_err().to_string();
    assert!(error.starts_with("still missing: cmake 3.24 or later, ninja, libclang"), "{error}");
    assert!(error.contains("libclang (for bindgen): no package manager"), "{error}");
}
