//! Pinned wheels for pip: one version of each, and the SHA-256 digest of every file that pip may install.
//!
//! To change a version, list the new hashes with `uv pip compile --universal --generate-hashes`. Or fetch the wheels
//! with `pip download --no-deps --only-binary=:all: --platform PLATFORM` and list their hashes with `pip hash`.

/// SHA-256 digests of the wheels of cmake 4.1.2: glibc and musl, each for x86-64 and aarch64.
const CMAKE: [&str; 4] = [
    "7587a2b2ce48df1fd68a68657b6c5a711b467c346812e46dfb9cd996cd6e2352",
    "b608042882f79ad2b92ce44bc1f1266882b7784f8feab313ae0b6c735379bd4c",
    "679cc0e1cc7227ead59f7126b27a9df44f3273c2952ab720f94e5dc5a3e26bd0",
    "ec978480e11a2c2591d54ed4e92a911913a85d805bd3d6311eb51dbcd22b8697",
];

/// SHA-256 digests of the wheels of ninja 1.13.0: glibc and musl, each for x86-64 and aarch64.
const NINJA: [&str; 4] = [
    "fb46acf6b93b8dd0322adc3a4945452a4e774b75b91293bafcc7b7f8e6517dfa",
    "3d00c692fb717fd511abeb44b8c5d00340c36938c12d6538ba989fe764e79630",
    "b4f2a072db3c0f944c32793e91532d8948d20d9ab83da9c0c7c15b5768072200",
    "11be2d22027bde06f14c343f01d31446747dbb51e72d00decca2eb99be911e2f",
];

/// Intel's MKL for x86-64 and its dependencies: package, version, SHA-256 digest.
const MKL: [(&str, &str, &str); 9] = [
    ("mkl-devel", "2026.2.0", "24f26067b4e822735b03ed620c61375d179224343cb1135254ad8c9af435a8a2"),
    ("mkl-include", "2026.2.0", "889cc72057a1671fee1e9a8beb2fc4e0d222ba78c08b6d69584dae03fbec4822"),
    ("mkl", "2026.2.0", "eaab1875ce9f47ab3c66d5632cef06baf768c05781f2f28847bdbc4343500ed7"),
    ("intel-openmp", "2026.2.0", "2308a1a3e74718a9cd8cccf218c34d8cd80b43d3b89dfbb01b38dee205c50980"),
    ("intel-cmplr-lib-ur", "2026.2.0", "0d0a5099aa2e1e38375b509c2a8182e719ed74aa656b2a800ddf6cfbd3384b80"),
    ("tbb", "2023.2.0", "7d80615b6e970f11671fa05b6eaa9483ac864fbfe525ac280271a78b37870b7c"),
    ("tbb-devel", "2023.2.0", "83d004c948614a3d36c10e19e10f9620eeee927cc68cee29442b94ec609e31d0"),
    ("tcmlib", "1.6.0", "46c2491988bfd18c4733eeb08aca6a386706a497b92cc51d155f37ddea003c14"),
    ("umf", "1.2.0", "238d186fdd9e9c0fe1489da95b19b0b79045fe26c4aa98bd0a022a2a3603c195"),
];

/// Returns the pip requirement for cmake.
pub(super) fn cmake() -> String {
    pin("cmake", "4.1.2", &CMAKE)
}

/// Returns the pip requirement for ninja.
pub(super) fn ninja() -> String {
    pin("ninja", "1.13.0", &NINJA)
}

/// Returns the pip requirements for MKL.
pub(super) fn mkl() -> Vec<String> {
    MKL.iter().map(|(package, version, hash)| pin(package, version, &[hash])).collect()
}

/// Returns the requirement for one version of a package, with the hashes of the only files that pip may install.
pub(super) fn pin(package: &str, version: &str, wheels: &[&str]) -> String {
    let hashes: String = wheels.iter().map(|hash| format!(" --hash=sha256:{hash}")).collect();
    format!("{package}=={version}{hashes}")
}
