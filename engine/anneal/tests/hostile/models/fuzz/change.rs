//! Changes of a file that follow its structure.

use random_weights::Xoshiro;

use super::form::{Form, Key, Tensor, Value, width};
use super::values::{ARCHITECTURES, BROKEN, MORE_KEYS, MORE_TENSORS, PRE, SCALINGS, TOKENIZERS, WHOLE};

/// Value types, from `enum gguf_type`.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const F64: u32 = 12;

/// Returns a random element of `list`.
pub fn pick<'a, T>(list: &'a [T], random: &mut Xoshiro) -> &'a T {
    &list[random.below(list.len())]
}

/// Changes of the data: offset and new bytes.
pub type Patches = Vec<(u64, Vec<u8>)>;

/// Makes one change to `form`, or to its data. Returns a description.
pub fn change(form: &mut Form, patches: &mut Patches, random: &mut Xoshiro) -> String {
    match random.below(100) {
        0..34 => value(form, random),
        34..46 => new_key(form, random),
        46..52 => architecture(form, random),
        52..68 => vocabulary(form, random),
        68..90 => tensor(form, random),
        90..97 => data(form, patches, random),
        97 => {
            let by = *pick(&[-1, 1, 1000, i64::MAX], random);
            let of_keys = random.below(2) == 0;
            form.miscounted = if of_keys { (by, 0) } else { (0, by) };
            format!("the number of {} is {by} more", if of_keys { "keys" } else { "tensors" })
        }
        _ => {
            // Half of the changed bytes are in the counts and the first keys.
            let place = if random.below(2) == 0 { random.below(400) } else { random.below(1 << 30) };
            let flip = (place, 1 << random.below(8));
            form.flips.push(flip);
            format!("byte {} of the header ^ {}", flip.0, flip.1)
        }
    }
}

/// Returns the bytes of a usually invalid number of the type `kind`.
fn number(kind: u32, random: &mut Xoshiro) -> Vec<u8> {
    match kind {
        F32 => (*pick(BROKEN, random) as f32).to_le_bytes().to_vec(),
        F64 => pick(BROKEN, random).to_le_bytes().to_vec(),
        BOOL => vec![*pick(&[0, 1, 2, 255], random)],
        _ => {
            let value = if random.below(4) == 0 { random.below(600) as i64 } else { *pick(WHOLE, random) };
            value.to_le_bytes()[..width(kind)].to_vec()
        }
    }
}

/// Returns a random type of numbers.
fn kind_of_number(random: &mut Xoshiro) -> u32 {
    *pick(&[0, 1, 2, 3, U32, I32, F32, BOOL, 10, 11, F64], random)
}

fn shown(bytes: &[u8], kind: u32) -> String {
    let mut wide = [0; 8];
    wide[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    match kind {
        F32 => f32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]).to_string(),
        F64 => f64::from_le_bytes(wide).to_string(),
        _ => u64::from_le_bytes(wide).to_string(),
    }
}

/// Creates an array of numbers: one per layer, one per token, or none. Also returns a description.
fn array(kind: u32, random: &mut Xoshiro) -> (Value, String) {
    let len = *pick(&[0, 1, 2, 3, 4, 6, 16, 512, 2048, 100_000], random);
    let one = number(kind, random);
    let words = format!("{len} times {} (type {kind})", shown(&one, kind));
    let mut bytes = one.repeat(len);
    if random.below(3) == 0 {
        bytes.iter_mut().step_by(width(kind)).for_each(|byte| *byte = random.below(9) as u8);
    }
    (Value::Numbers { of: kind, bytes, said: 0 }, words)
}

/// Returns a usually invalid text for `key`.
fn text(key: &str, random: &mut Xoshiro) -> Vec<u8> {
    let names = match key {
        "general.architecture" => ARCHITECTURES,
        "tokenizer.ggml.pre" => PRE,
        "tokenizer.ggml.model" => TOKENIZERS,
        key if key.ends_with("scaling.type") => SCALINGS,
        _ => &["", "none", "adapter", "lora", "model", "mmproj"],
    };
    match random.below(8) {
        0 => Vec::new(),
        1 => b"\xff\xfe\0x".to_vec(),
        2 => vec![b'a'; 5000],
        _ => pick(names, random).as_bytes().to_vec(),
    }
}

fn value(form: &mut Form, random: &mut Xoshiro) -> String {
    if form.keys.is_empty() {
        return "nothing: it has no keys".to_string();
    }
    let at = random.below(form.keys.len());
    if random.below(6) == 0 {
        return format!("without {}", form.keys.remove(at).name);
    }
    let Key { name, value } = &mut form.keys[at];
    let words = match value {
        Value::Scalar { kind, bytes } => match random.below(10) {
            0..6 => {
                *bytes = number(*kind, random);
                format!("{} (type {kind})", shown(bytes, *kind))
            }
            6..8 => {
                let to = kind_of_number(random);
                *kind = to;
                // Often, the new value is the same number with a different type.
                if random.below(2) == 0 && to != F32 && to != F64 {
                    bytes.resize(width(to), 0)
                } else {
                    *bytes = number(to, random)
                }
                format!("{} of type {to}", shown(bytes, to))
            }
            8 => {
                let of = if random.below(3) > 0 { *kind } else { kind_of_number(random) };
                let (new, words) = array(of, random);
                *value = new;
                words
            }
            _ => {
                *value = Value::Text(text(name, random));
                "a text".to_string()
            }
        },
        Value::Text(old) => match random.below(6) {
            0 => {
                let kind = kind_of_number(random);
                *value = Value::Scalar { kind, bytes: number(kind, random) };
                format!("a number of type {kind}")
            }
            _ => {
                *old = text(name, random);
                let start = String::from_utf8_lossy(&old[..old.len().min(20)]).into_owned();
                format!("{start:?}, {} bytes", old.len())
            }
        },
        Value::Numbers { of, bytes, said } => match random.below(5) {
            0 => {
                bytes.truncate(bytes.len() / width(*of) / 2 * width(*of));
                "half as long".to_string()
            }
            1 => {
                *said = *pick(&[-1, 1, 100, 1 << 29, 1 << 31, i64::MAX], random);
                format!("said to be {said} longer")
            }
            2 => {
                let (new, words) = array(kind_of_number(random), random);
                *value = new;
                words
            }
            _ => {
                let (one, len) = (number(*of, random), bytes.len() / width(*of));
                let step = *pick(&[1, 2, 100], random);
                for chunk in bytes.chunks_exact_mut(one.len()).step_by(step) {
                    chunk.copy_from_slice(&one);
                }
                format!("every {step}th of {len} is {}", shown(&one, *of))
            }
        },
        Value::Texts { texts, said } => match random.below(3) {
            0 => {
                texts.truncate(random.below(texts.len().max(1)));
                format!("cut to {} texts", texts.len())
            }
            1 => {
                *said = *pick(&[-1, 1, 100, 1 << 29, 1 << 31], random);
                format!("said to be {said} longer")
            }
            _ => {
                let (new, words) = array(kind_of_number(random), random);
                *value = new;
                words
            }
        },
    };
    format!("{name} is {words}")
}

fn own_architecture(form: &Form) -> String {
    let key = form.keys.iter().find(|key| key.name == "general.architecture");
    match key.map(|key| &key.value) {
        Some(Value::Text(text)) => String::from_utf8_lossy(text).into_owned(),
        _ => "llama".to_string(),
    }
}

fn new_key(form: &mut Form, random: &mut Xoshiro) -> String {
    let name = pick(MORE_KEYS, random).replace("{a}", &own_architecture(form));
    let kind = if random.below(2) == 0 { U32 } else { kind_of_number(random) };
    let (value, words) = match random.below(8) {
        0 => array(kind, random),
        1 => (Value::Text(text(&name, random)), "a text".to_string()),
        _ if name.ends_with(".type") => {
            let text = text(&name, random);
            let words = format!("{:?}", String::from_utf8_lossy(&text[..text.len().min(20)]));
            (Value::Text(text), words)
        }
        _ => {
            let bytes = number(kind, random);
            let words = format!("{} (type {kind})", shown(&bytes, kind));
            (Value::Scalar { kind, bytes }, words)
        }
    };
    form.keys.retain(|key| key.name != name);
    let words = format!("new: {name} is {words}");
    form.keys.push(Key { name, value });
    words
}

/// Changes the architecture and renames its keys, so that llama.cpp finds them.
fn architecture(form: &mut Form, random: &mut Xoshiro) -> String {
    let (old, new) = (own_architecture(form), *pick(ARCHITECTURES, random));
    for key in &mut form.keys {
        if key.name == "general.architecture" {
            key.value = Value::Text(new.into());
        } else if let Some(rest) = key.name.strip_prefix(&format!("{old}.")) {
            key.name = format!("{new}.{rest}");
        }
    }
    format!("architecture {new}, and its keys")
}

fn vocabulary(form: &mut Form, random: &mut Xoshiro) -> String {
    let find = |form: &Form, name: &str| form.keys.iter().position(|key| key.name == name);
    let which = *pick(&["tokens", "tokens", "merges", "token_type", "scores", "model"], random);
    let at = find(form, &format!("tokenizer.ggml.{which}"));
    if which == "scores" || which == "model" {
        let tokenizer = *pick(TOKENIZERS, random);
        if let Some(at) = find(form, "tokenizer.ggml.model") {
            form.keys[at].value = Value::Text(tokenizer.into());
        }
        let count = *pick(&[0, 1, 2047, 2048, 2049, 16_384], random);
        let scores = number(F32, random).repeat(count);
        form.keys.retain(|key| key.name != "tokenizer.ggml.scores");
        let value = Value::Numbers { of: F32, bytes: scores, said: 0 };
        form.keys.push(Key { name: "tokenizer.ggml.scores".into(), value });
        return format!("tokenizer {tokenizer} with {count} scores");
    }
    let Some(at) = at else { return format!("nothing: it has no {which}") };
    match &mut form.keys[at].value {
        Value::Texts { texts, .. } if !texts.is_empty() => {
            let (one, other) = (random.below(texts.len()), random.below(texts.len()));
            let new: Vec<u8> = match random.below(9) {
                0 | 1 => texts[other].clone(),
                2 => Vec::new(),
                3 => b" ".to_vec(),
                4 => b"a b c".to_vec(),
                5 => b"\0".to_vec(),
                6 => b"\xff\xfe".to_vec(),
                7 => "\u{120}".repeat(4000).into_bytes(),
                _ => b"<0xZZ>".to_vec(),
            };
            if random.below(6) == 0 {
                let len = texts.len();
                texts.iter_mut().skip(one).for_each(|text| text.clone_from(&new));
                return format!("{which} from {one} to {len} are {} bytes of {:?}", new.len(), new.first());
            }
            let words = format!("{which}[{one}] is {} bytes of {:?}", new.len(), new.first());
            texts[one] = new;
            words
        }
        Value::Numbers { of, bytes, .. } if !bytes.is_empty() => {
            let kind = *pick(&[0, 1, 2, 3, 4, 5, 6, 7, 255], random);
            let from = random.below(bytes.len() / width(*of));
            let count = *pick(&[1, 10, usize::MAX], random);
            for chunk in bytes.chunks_exact_mut(width(*of)).skip(from).take(count) {
                chunk.fill(0);
                chunk[0] = kind;
            }
            format!("{count} types of tokens from {from} are {kind}")
        }
        _ => format!("nothing: {which} are none"),
    }
}

/// Returns a tensor type. Some numbers are not valid types.
fn kind_of_tensor(random: &mut Xoshiro) -> u32 {
    if random.below(20) == 0 {
        *pick(&[4, 5, 31, 32, 33, 99, u32::MAX], random)
    } else {
        random.below(42) as u32
    }
}

fn tensor(form: &mut Form, random: &mut Xoshiro) -> String {
    if form.tensors.is_empty() {
        return "nothing: it has no tensors".to_string();
    }
    let (at, other) = (random.below(form.tensors.len()), random.below(form.tensors.len()));
    let name = form.tensors[at].name.clone();
    // Inconsistent sizes are detected immediately and hide later errors.
    let mut fits = random.below(8) > 0;
    let words = match random.below(20) {
        0..7 => {
            let kind = kind_of_tensor(random);
            form.tensors[at].kind = kind;
            format!("{name} is of type {kind}")
        }
        7 => {
            // The change affects all matrices, or all of one role.
            let kind = kind_of_tensor(random);
            let role = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem).rsplit('.').next();
            let role = role.filter(|_| random.below(2) == 0).unwrap_or(".").to_string();
            let is_one = |tensor: &&mut Tensor| tensor.dims.len() > 1 && tensor.name.contains(&role);
            form.tensors.iter_mut().filter(is_one).for_each(|tensor| tensor.kind = kind);
            format!("all matrices of {role} are of type {kind}")
        }
        8..12 => {
            let dims = &mut form.tensors[at].dims;
            let dim = random.below(dims.len().max(1));
            match random.below(7) {
                0 => dims.push(*pick(&[0, 1, 2, 3], random)),
                1 => drop(dims.pop()),
                2 => dims.reverse(),
                3 if dim < dims.len() => dims[dim] = *pick(WHOLE, random) as u64,
                4 if dim < dims.len() => dims[dim] = dims[dim].wrapping_add(256),
                5 if dim < dims.len() => dims[dim] = dims[dim].wrapping_add_signed(*pick(&[-1, 1], random)),
                _ => dims.iter_mut().for_each(|dim| *dim /= 2),
            }
            format!("{name} is of {dims:?}")
        }
        12 | 13 => {
            let new = match random.below(3) {
                0 => form.tensors[other].name.clone(),
                1 => format!("{name}x"),
                _ => pick(MORE_TENSORS, random).to_string(),
            };
            form.tensors[at].name.clone_from(&new);
            format!("{name} is called {new}")
        }
        14 => {
            form.tensors.remove(at);
            format!("without {name}")
        }
        15 | 16 => {
            let mut copy = form.tensors[at].clone();
            copy.name =
                if random.below(5) == 0 { name.clone() } else { pick(MORE_TENSORS, random).to_string() };
            let words = format!("{name} once more as {}", copy.name);
            form.tensors.retain(|tensor| tensor.name != copy.name || copy.name == name);
            form.tensors.push(copy);
            words
        }
        17 => {
            form.tensors.swap(at, other);
            format!("{name} at another place")
        }
        _ => {
            fits = false;
            let by = *pick(&[1, 32, 4096, 1 << 20, 1 << 40, i64::MAX as u64, u64::MAX - 31], random);
            form.tensors[at].offset = form.tensors[at].offset.wrapping_add(by);
            format!("{name} starts {by} bytes later")
        }
    };
    if fits {
        form.lay_out();
    }
    words
}

fn data(form: &Form, patches: &mut Patches, random: &mut Xoshiro) -> String {
    if form.tensors.is_empty() {
        return "nothing: it has no tensors".to_string();
    }
    let tensor = pick(&form.tensors, random);
    let len = (tensor.bytes() as usize).min(1 << 20);
    let start = if random.below(2) == 0 { 0 } else { random.below(len.max(1)) / 32 * 32 };
    let len = (len - start).min(*pick(&[4, 256, 1 << 20], random));
    // Bytes of f32 and f16 values, independent of the tensor's type.
    let (what, bytes): (&str, Vec<u8>) = match random.below(6) {
        0 => ("NaN", f32::NAN.to_le_bytes().repeat(len / 4)),
        1 => ("infinity", f32::INFINITY.to_le_bytes().repeat(len / 4)),
        2 => ("NaN of 16 bits", 0x7e00_u16.to_le_bytes().repeat(len / 2)),
        3 => ("the largest of 16 bits", 0x7bff_u16.to_le_bytes().repeat(len / 2)),
        4 => ("0xff", vec![0xff; len]),
        _ => ("noise", (0..len).map(|_| random.next_u64() as u8).collect()),
    };
    patches.push((tensor.offset.saturating_add(start as u64), bytes));
    format!("{len} bytes of {} from {start} are {what}", tensor.name)
}
