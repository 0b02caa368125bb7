/// Creates a model of a few megabytes with random weights. The file is deleted when the result is dropped. The
/// examples in the documentation need a model that exists on every machine.
fn tiny() -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a temporary file");
    gguf::synth::write(file.path(), &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
        .expect("a tiny model");
    file
}
