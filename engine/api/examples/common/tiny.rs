/// A model of a few megabytes with random weights, for as long as it is kept: examples in the documentation need one
/// that is there on every machine.
fn tiny() -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a temporary file");
    gguf::synth::write(file.path(), &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny)).expect("a tiny model");
    file
}
