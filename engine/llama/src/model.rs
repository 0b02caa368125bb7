//! Safe wrapper around a llama.cpp model.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use gguf::check::Checked;
use llama_sys as sys;

use crate::adapters;
use crate::devices::{Device, MAX_DEVICES, watch_workers};
use crate::error::{Error, Result};
use crate::fit::LayerPlan;
use crate::message::{Message, c_path, owned};
use crate::model_options::ModelOptions;
use crate::notice;
use crate::offload::{self, Placed};
use crate::options::{LoadMode, SplitMode};
use crate::own_kernels;
use crate::system::start;
use crate::token::Token;
use crate::variant::Variant;

/// Loaded model.
pub struct Model {
    pub(super) raw: NonNull<sys::llama_model>,
    pub(super) vocab: *const sys::llama_vocab,
    path: PathBuf,
    repacked: u64,
    on_devices: u64,
    n_ctx_train: u32,
    placed: Placed,
    plan: OnceLock<LayerPlan>,
    pub(super) longest_token: OnceLock<usize>,
    pub(super) variant: adapters::Applied,
}

// SAFETY: llama.cpp never changes a model after loading it. Its vocabulary is documented as thread-safe, and several
// contexts on several threads may share a model.
unsafe impl Send for Model {}
// SAFETY: as above.
unsafe impl Sync for Model {}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: owned; every context holds an `Arc` of the model.
        unsafe { sys::llama_model_free(self.raw.as_ptr()) }
    }
}

impl Model {
    /// Loads `path` after checks that prevent a bad file from ending the process. `model::open` in the engine runs
    /// further checks.
    pub fn load(path: &Path, options: &ModelOptions) -> Result<Arc<Model>> {
        Self::load_as(&gguf::check::open(path)?, options, &Variant::default())
    }

    /// Loads `checked` with the adapters of `variant`. All models are loaded by this function, including draft models,
    /// vocabulary-only models, and models for memory estimates.
    pub fn load_as(checked: &Checked, options: &ModelOptions, variant: &Variant) -> Result<Arc<Model>> {
        let path = checked.path();
        start(false);
        crate::kernels::load()?;
        // A vocabulary uses no device. The device settings are checked when the whole model is loaded.
        let placed = match options.vocab_only {
            true => Placed { list: Some(Vec::new()), ..Placed::default() },
            false => offload::place(&options.offload)?,
        };
        // Both lists end with a null entry, as llama.cpp expects.
        let mut devices: Option<Vec<sys::ggml_backend_dev_t>> = placed
            .list
            .as_ref()
            .map(|list| list.iter().map(Device::raw).chain([std::ptr::null_mut()]).collect());
        let mut shares = options.offload.tensor_split.0.clone();
        shares.resize(MAX_DEVICES.max(shares.len()), 0.0);
        // Overrides for the host: name patterns, and the CPU's buffer type. llama.cpp adds its repacking buffer
        // types to the CPU's type.
        let on_host = match placed.takers.is_empty() {
            true => Vec::new(),
            false => options.offload.n_cpu_moe.patterns(),
        };
        let on_host: Vec<CString> = on_host.into_iter().filter_map(|text| CString::new(text).ok()).collect();
        // SAFETY: looks up a static value.
        let cpu = unsafe { sys::ggml_backend_cpu_buffer_type() };
        let end =
            sys::llama_model_tensor_buft_override { pattern: std::ptr::null(), buft: std::ptr::null_mut() };
        let overrides: Vec<sys::llama_model_tensor_buft_override> = on_host
            .iter()
            .map(|text| sys::llama_model_tensor_buft_override { pattern: text.as_ptr(), buft: cpu })
            .chain([end])
            .collect();
        let file = c_path(path)?;
        let mut message = Message::new();
        let (err, err_size) = message.parts();
        // SAFETY: `file`, `params`, the lists and the message buffer outlive the call. llama.cpp copies the lists
        // except the overrides, which it does not use after loading.
        let raw = unsafe {
            let mut params = sys::llama_model_default_params();
            params.load_mode = load_mode(options.load_mode);
            params.use_extra_bufts = options.repack;
            params.vocab_only = options.vocab_only;
            if options.no_alloc {
                // llama.cpp does not map the file in this mode, and asserts that no mapping is requested
                // (src/llama-model.cpp, `load_tensors`; ggml 0.26.0).
                params.no_alloc = true;
                params.load_mode = sys::LLAMA_LOAD_MODE_NONE;
            }
            if !on_host.is_empty() {
                params.tensor_buft_overrides = overrides.as_ptr();
            }
            params.devices = devices.as_mut().map_or(std::ptr::null_mut(), |list| list.as_mut_ptr());
            if !placed.takers.is_empty() {
                params.n_gpu_layers = options.offload.gpu_layers.number();
                params.split_mode = split_mode(options.offload.split_mode);
                params.main_gpu = i32::try_from(options.offload.main_gpu).unwrap_or(i32::MAX);
                params.no_host = !placed.host_buffers;
                if !options.offload.tensor_split.0.is_empty() {
                    params.tensor_split = shares.as_ptr();
                }
            }
            sys::anneal_model_load(file.as_ptr(), &params, err, err_size)
        };
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::Load { path: path.to_path_buf(), why: message.text() })?;
        // SAFETY: a live model has a vocabulary, which lives as long as the model.
        let vocab = unsafe { sys::llama_model_get_vocab(raw.as_ptr()) };
        // SAFETY: reads a thread-local number.
        let repacked = unsafe { sys::anneal_repacked_bytes() };
        // SAFETY: reads a thread-local number.
        let on_devices = unsafe { sys::anneal_device_bytes() };
        // SAFETY: reads a field.
        let n_ctx_train = unsafe { sys::llama_model_n_ctx_train(raw.as_ptr()) }.max(0).cast_unsigned();
        let (applied, plan) = (adapters::Applied::default(), OnceLock::new());
        let path = path.to_path_buf();
        watch_workers();
        let mut model = Model {
            raw,
            vocab,
            path,
            repacked,
            on_devices,
            n_ctx_train,
            placed,
            plan,
            longest_token: OnceLock::new(),
            variant: applied,
        };
        model.apply(variant)?;
        Ok(Arc::new(model))
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the devices of the model's layers.
    pub fn placed(&self) -> &Placed {
        &self.placed
    }

    /// Returns the result of the search for layers that fit; `None` if no search was made.
    pub fn plan(&self) -> Option<&LayerPlan> {
        self.plan.get()
    }

    /// Stores the result of the search for layers that fit. Only the first call has an effect.
    pub fn set_plan(&self, plan: LayerPlan) {
        let _ = self.plan.set(plan);
    }

    /// True if each token attends only to earlier tokens.
    pub fn is_causal(&self) -> bool {
        let architecture = self.metadata("general.architecture").unwrap_or_default();
        let says = self.metadata(&format!("{architecture}.attention.causal"));
        // Some architectures are not causal, although their metadata does not say so.
        says.as_deref() != Some("false") && !architecture.contains("bert") && !architecture.contains("embed")
    }

    /// True if a device other than the CPU computes the logits.
    pub fn makes_logits_on_device(&self) -> bool {
        let layers = self.n_layer();
        // The output counts as an additional layer.
        self.placed.layers_of(layers) > layers
    }

    /// Returns llama.cpp's description, such as `qwen2 1.5B Q4_K - Medium`.
    pub fn description(&self) -> String {
        let mut buffer = [0u8; 256];
        // SAFETY: writes at most the given size with a NUL at the end.
        unsafe {
            sys::llama_model_desc(self.raw.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len());
            owned(buffer.as_ptr().cast())
        }
    }

    /// Returns the value of a scalar metadata key.
    pub fn metadata(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        let mut buffer = vec![0u8; 256];
        loop {
            // SAFETY: `key` is NUL-terminated; writes at most the given size with a NUL at the end.
            let length = unsafe {
                sys::llama_model_meta_val_str(
                    self.raw.as_ptr(),
                    key.as_ptr(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                )
            };
            let length = usize::try_from(length).ok()?;
            if length < buffer.len() {
                // SAFETY: the buffer contains a NUL.
                return Some(unsafe { owned(buffer.as_ptr().cast()) });
            }
            // A long value, such as a template, was truncated. llama.cpp returned its full length.
            buffer.resize(length + 1, 0);
        }
    }

    /// Returns the total size of the tensors in bytes.
    pub fn size(&self) -> u64 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_size(self.raw.as_ptr()) }
    }

    /// Returns the size in bytes, rounded to 0.01 MiB, of the weights that were copied into another layout for the
    /// CPU's kernels.
    pub fn repacked(&self) -> u64 {
        self.repacked
    }

    /// Returns the size of the weights in the memory of devices, in bytes, rounded to 0.01 MiB.
    pub fn on_devices(&self) -> u64 {
        self.on_devices
    }

    /// True if a token's logits have the same bits in each batch, according to
    /// [`own_kernels::are_batch_invariant`].
    pub fn is_batch_invariant(&self) -> bool {
        self.placed.takers.is_empty() && own_kernels::are_batch_invariant()
    }

    /// Returns the number of parameters.
    pub fn n_params(&self) -> u64 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_n_params(self.raw.as_ptr()) }
    }

    /// Returns the context size that the model was trained for, in tokens.
    pub fn n_ctx_train(&self) -> u32 {
        // This value was read when the model was loaded, because contexts with YaRN change the value that
        // llama.cpp reports.
        self.n_ctx_train
    }

    /// Returns the number of layers.
    pub fn n_layer(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_model_n_layer(self.raw.as_ptr()) }.max(0).cast_unsigned()
    }

    /// True if every layer keeps K and V for the whole context: the model has no recurrent state, and llama.cpp keeps
    /// the cells behind sliding windows (patch 0020; [`ContextOptions`](crate::options::ContextOptions) leaves
    /// `swa_full` at its default, true).
    pub fn has_plain_cache(&self) -> bool {
        // SAFETY: reads a constant.
        let keeps_windows = || unsafe { sys::anneal_window_cells_are_kept() };
        self.can_take_back() && (self.window().is_none() || keeps_windows())
    }

    /// Returns the number of tokens to which a layer with a sliding window attends; `None` if no layer has a window.
    pub fn window(&self) -> Option<u32> {
        // SAFETY: reads a field.
        let window = unsafe { sys::llama_model_n_swa(self.raw.as_ptr()) };
        u32::try_from(window).ok().filter(|window| *window > 0)
    }

    /// True if the model has no encoder. Anneal generates text only with decoder-only models.
    pub fn is_decoder_only(&self) -> bool {
        // SAFETY: reads fields.
        unsafe {
            sys::llama_model_has_decoder(self.raw.as_ptr())
                && !sys::llama_model_has_encoder(self.raw.as_ptr())
        }
    }

    /// True if the model has a vocabulary. Without a vocabulary, llama.cpp's tokenizer aborts.
    pub fn has_vocabulary(&self) -> bool {
        // SAFETY: reads a field.
        unsafe { sys::llama_vocab_type(self.vocab) != sys::LLAMA_VOCAB_TYPE_NONE }
    }

    fn check_vocabulary(&self) -> Result<()> {
        match self.has_vocabulary() {
            true => Ok(()),
            false => Err(Error::Tokenize("the model has no vocabulary".to_string())),
        }
    }

    /// Returns the number of tokens in the vocabulary.
    pub fn n_vocab(&self) -> u32 {
        // SAFETY: reads a field.
        unsafe { sys::llama_vocab_n_tokens(self.vocab) }.max(0).cast_unsigned()
    }

    /// Returns the token that begins a text; `None` if the model does not use such a token.
    pub fn begin_token(&self) -> Option<Token> {
        // SAFETY: reads fields.
        unsafe { sys::llama_vocab_get_add_bos(self.vocab).then(|| sys::llama_vocab_bos(self.vocab)) }
    }

    /// True if `token` ends a generation.
    pub fn is_end(&self, token: Token) -> bool {
        // SAFETY: looks the token up in a set; any number is accepted.
        unsafe { sys::llama_vocab_is_eog(self.vocab, token) }
    }

    /// Tokenises `text`, with the special tokens that the model expects around it. Warns if the text already begins
    /// with the token that the model adds, because models give worse answers to such prompts.
    pub fn tokenize(&self, text: &str) -> Result<Vec<Token>> {
        let tokens = self.tokenize_with(text, true)?;
        if let (Some(begin), [first, second, ..]) = (self.begin_token(), tokens.as_slice())
            && [*first, *second] == [begin, begin]
        {
            notice::warn(
                "the prompt begins with two begin-of-text tokens: one that the model adds, and one in the text\n\
                 hint: remove the token from the text",
            );
        }
        Ok(tokens)
    }

    /// Tokenises `text`. If `add_special` is true, adds the special tokens that the model expects around a text. Names
    /// of special tokens in `text` are converted to these tokens.
    pub fn tokenize_with(&self, text: &str, add_special: bool) -> Result<Vec<Token>> {
        self.tokenize_as(text, add_special, true)
    }

    /// Tokenises `text` without special tokens. Names of control tokens in `text` remain text.
    pub fn tokenize_plain(&self, text: &str) -> Result<Vec<Token>> {
        self.tokenize_as(text, false, false)
    }

    fn tokenize_as(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<Token>> {
        self.check_vocabulary()?;
        let too_long =
            || Error::Tokenize(format!("its {} bytes are more than llama.cpp supports", text.len()));
        let text_len = i32::try_from(text.len()).map_err(|_| too_long())?;
        // Each token has at least one byte, and only a few tokens are special. If the buffer is too small, a second
        // pass follows.
        let mut tokens: Vec<Token> = vec![0; text.len() + 8];
        for _ in 0..2 {
            let capacity = i32::try_from(tokens.len()).map_err(|_| too_long())?;
            let mut message = Message::new();
            let (err, err_size) = message.parts();
            let mut threw = false;
            // SAFETY: the pointers and lengths match, and the buffers outlive the call.
            let count = unsafe {
                sys::anneal_tokenize(
                    self.vocab,
                    text.as_ptr().cast(),
                    text_len,
                    tokens.as_mut_ptr(),
                    capacity,
                    add_special,
                    parse_special,
                    &mut threw,
                    err,
                    err_size,
                )
            };
            if threw {
                return Err(Error::Tokenize(message.text()));
            }
            match usize::try_from(count) {
                Ok(count) => {
                    tokens.truncate(count);
                    return Ok(tokens);
                }
                Err(_) if count == i32::MIN => return Err(too_long()),
                Err(_) => tokens.resize(count.unsigned_abs() as usize, 0),
            }
        }
        Err(Error::Tokenize("llama.cpp returned two different token counts".to_string()))
    }

    /// Appends the bytes of `token` to `bytes`. The bytes may be only a part of a character; control tokens have no
    /// bytes.
    pub fn piece(&self, token: Token, bytes: &mut Vec<u8>) -> Result<()> {
        self.piece_with(token, false, bytes)
    }

    /// Does the same as [`piece`](Self::piece). If `special` is true, also appends the names of control tokens.
    pub fn piece_with(&self, token: Token, special: bool, bytes: &mut Vec<u8>) -> Result<()> {
        self.check_vocabulary()?;
        let start = bytes.len();
        // Nearly every piece is shorter. The first pass returns the length that a second pass needs.
        let mut room = 64;
        for _ in 0..2 {
            bytes.resize(start + room, 0);
            let mut message = Message::new();
            let (err, err_size) = message.parts();
            let mut threw = false;
            // SAFETY: writes at most `room` bytes into the part of the buffer that was just added.
            let count = unsafe {
                sys::anneal_token_to_piece(
                    self.vocab,
                    token,
                    bytes.as_mut_ptr().add(start).cast(),
                    room as i32,
                    special,
                    &mut threw,
                    err,
                    err_size,
                )
            };
            if threw {
                bytes.truncate(start);
                return Err(Error::Tokenize(message.text()));
            }
            if let Ok(count) = usize::try_from(count) {
                bytes.truncate(start + count);
                return Ok(());
            }
            room = count.unsigned_abs() as usize;
        }
        bytes.truncate(start);
        Ok(())
    }
}

fn split_mode(mode: SplitMode) -> sys::llama_split_mode {
    match mode {
        SplitMode::None => sys::LLAMA_SPLIT_MODE_NONE,
        SplitMode::Layer => sys::LLAMA_SPLIT_MODE_LAYER,
        SplitMode::Row => sys::LLAMA_SPLIT_MODE_ROW,
        SplitMode::Tensor => sys::LLAMA_SPLIT_MODE_TENSOR,
    }
}

fn load_mode(mode: LoadMode) -> sys::llama_load_mode {
    match mode {
        LoadMode::Auto => sys::LLAMA_LOAD_MODE_AUTO,
        LoadMode::None => sys::LLAMA_LOAD_MODE_NONE,
        LoadMode::Mmap => sys::LLAMA_LOAD_MODE_MMAP,
        LoadMode::Mlock => sys::LLAMA_LOAD_MODE_MLOCK,
        LoadMode::MmapMlock => sys::LLAMA_LOAD_MODE_MMAP_MLOCK,
        LoadMode::DirectIo => sys::LLAMA_LOAD_MODE_DIRECT_IO,
    }
}
