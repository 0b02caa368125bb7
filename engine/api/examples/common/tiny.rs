/// Creates a model of a few megabytes with random weights, which is deleted when the result is dropped. Examples in
/// the documentation use it, because they need a model that exists on every machine.
fn tiny() -> tempfile::NamedTempFile {
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().expect("a temporary file");
    gguf::synth::write(file.path(), &gguf::synth::SynthOptions::new(gguf::synth::Preset::Tiny))
        .expect("a tiny model");
    file
}
