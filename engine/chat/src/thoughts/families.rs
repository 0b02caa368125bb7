//! Markers of thoughts in well-known families of models.

use super::{Place, THINK, ThoughtMarks};

/// Markers of well-known families of models. The first entry that matches a template is used.
pub(super) const KNOWN: [ThoughtMarks; 16] = [
    // Granite 3.3.
    ThoughtMarks { answer: Some(("<response>", "</response>")), ..THINK },
    // Hunyuan A13B.
    ThoughtMarks { answer: Some(("<answer>", "</answer>")), ..THINK },
    // DeepSeek, Qwen, GLM, MiniMax M2, Kimi K2, Nemotron, LFM2.5 and many others.
    THINK,
    // Magistral.
    ThoughtMarks { open: "[THINK]", close: "[/THINK]", tokens: &["[THINK]", "[/THINK]"], ..THINK },
    // Seed.
    ThoughtMarks {
        open: "<seed:think>",
        close: "</seed:think>",
        tokens: &["<seed:think>", "</seed:think>"],
        ..THINK
    },
    // Command A.
    ThoughtMarks {
        open: "<|START_THINKING|>",
        close: "<|END_THINKING|>",
        tokens: &["<|START_THINKING|>", "<|END_THINKING|>"],
        ..THINK
    },
    // Gemma 4: a channel, whose name follows the marker.
    ThoughtMarks {
        open: "<|channel>thought",
        close: "<channel|>",
        place: Place::Anywhere,
        tokens: &["<|channel>", "<channel|>"],
        ..THINK
    },
    // MiniMax M3.
    ThoughtMarks {
        open: "<mm:think>",
        close: "</mm:think>",
        tokens: &["<mm:think>", "</mm:think>"],
        ..THINK
    },
    // Kimi VL.
    ThoughtMarks {
        open: "◁think▷", close: "◁/think▷", tokens: &["◁think▷", "◁/think▷"], ..THINK
    },
    // EXAONE Deep.
    ThoughtMarks { open: "<thought>", close: "</thought>", tokens: &["<thought>", "</thought>"], ..THINK },
    // Granite 3.2.
    ThoughtMarks { open: "Here is my thought process:", close: "Here is my response:", tokens: &[], ..THINK },
    // Apriel, whose template asks for thoughts in every answer.
    ThoughtMarks {
        open: "Here are my reasoning steps:",
        close: "[BEGIN FINAL RESPONSE]",
        answer: Some(("", "[END FINAL RESPONSE]")),
        place: Place::Always,
        tokens: &["[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"],
        ..THINK
    },
    // Hunyuan 3.
    ThoughtMarks {
        open: "<think:opensource>",
        close: "</think:opensource>",
        sign: Some("'<think{}>'"),
        tokens: &["<think:opensource>", "</think:opensource>"],
        ..THINK
    },
    // Solar Open. Thoughts and the answer are separate messages.
    ThoughtMarks {
        open: "<|think|>",
        close: "<|end|>",
        answer: Some(("<|content|>", "<|end|>")),
        dropped: &["<|begin|>assistant"],
        sign: Some("assistant<|think|>"),
        tokens: &["<|think|>", "<|end|>", "<|begin|>", "<|content|>"],
        ..THINK
    },
    // Kimi K3, whose template builds all markers with a macro.
    ThoughtMarks {
        open: "<|open|>think<|sep|>",
        close: "<|close|>think<|sep|>",
        answer: Some(("<|open|>response<|sep|>", "<|close|>response<|sep|>")),
        dropped: &["<|close|>message<|sep|>"],
        sign: Some("open_tag('think')"),
        tokens: &["<|open|>", "<|close|>", "<|sep|>"],
        ..THINK
    },
    // Apertus, which may call tools within thoughts.
    ThoughtMarks {
        open: "<|inner_prefix|>",
        close: "<|inner_suffix|>",
        call: Some("<|tools_prefix|>"),
        tokens: &["<|inner_prefix|>", "<|inner_suffix|>", "<|tools_prefix|>"],
        ..THINK
    },
];
