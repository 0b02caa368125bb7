//! Command `anneal chat`.

mod entry;
mod input;
mod talk;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use chat::Template;
use engine_core::conversation::Conversation;
use engine_core::model;
use engine_core::session::Session;
use engine_core::settings::{Requested, Settings};
use input::{Input, Read};
use llama::start;
use talk::{Next, Talk};

use super::flags::{ContextFlags, DeviceFlags, LoadFlags, ThreadFlags, TuningFlags, VariantFlags};
use super::hub::HubFlags;
use super::run::predict;
use super::sampling::ChainFlags;
use super::speculative::SpeculativeFlags;
use crate::interrupt;

/// Chat with a model in the terminal
///
/// The chat template in the model's file formats your input, and the answer is printed as it is generated. Each turn
/// evaluates only the new tokens. Ctrl-C stops an answer, ctrl-D or /exit ends the chat, and /help lists the
/// commands. If stdin is a pipe, each line is a message, and only the answers are printed to stdout.
#[derive(clap::Args, Debug)]
#[command(after_help = super::LLAMA_FLAGS_HELP)]
pub struct Args {
    /// GGUF model
    #[arg(short, long, value_name = "FILE", required_unless_present = "hf")]
    model: Option<PathBuf>,
    #[command(flatten)]
    hub: HubFlags,
    /// System prompt
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Chat template to use instead of the model's: chatml, gemma, llama3, mistral, plain, or a Jinja file
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,
    /// Reasoning effort, for example low or high; none turns thoughts off
    #[arg(long, value_name = "LEVEL")]
    reasoning_effort: Option<String>,
    /// Maximum number of thought tokens before an answer [default: no limit]
    #[arg(long, value_name = "N")]
    reasoning_budget: Option<u32>,
    /// Maximum number of tokens in an answer; -1 for no limit other than the context
    #[arg(short = 'n', long, value_name = "N", default_value = "-1", value_parser = predict)]
    predict: u32,
    /// Do not save the input history
    #[arg(long)]
    no_history: bool,
    /// Print the speeds to stderr after each answer
    #[arg(long)]
    stats: bool,
    /// Print each answer as a JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: ChainFlags,
    #[command(flatten)]
    context: ContextFlags,
    #[command(flatten)]
    threads: ThreadFlags,
    #[command(flatten)]
    variant: VariantFlags,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    offload: DeviceFlags,
    #[command(flatten)]
    speculative: SpeculativeFlags,
    #[command(flatten)]
    tuning: TuningFlags,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let mut requested = Requested::default();
    args.sampling.basic.ask(&mut requested);
    args.context.ask(&mut requested);
    args.threads.ask(&mut requested);
    args.load.ask(&mut requested);
    args.offload.ask(&mut requested);
    args.variant.ask(&mut requested);
    let runtime_host = super::placed_runtime_host(&requested)?;
    let model = args.hub.one(args.model.as_deref())?;
    let tuned = args.tuning.look_up(&model, &requested.variant, &runtime_host);
    let settings = Settings::resolve_tuned(&requested, tuned.as_ref(), &runtime_host)?;
    super::warn_of(&settings);
    super::warn_of_context(&model, &settings);
    let sampling = args.sampling.options(&settings)?;
    let speculation = args.speculative.options()?;
    super::device::check(&settings, &speculation, false)?;

    start(args.load.verbose);
    let typed = io::stdin().is_terminal();
    let signals = interrupt::stop_answers(typed);
    let model = model::open(&model, &settings, &runtime_host)?;
    let template = Template::choose(args.chat_template.as_deref(), &model)?;
    let mut session = Session::open(&model, &settings, &runtime_host, true)?;
    session.speculate(&speculation, &settings, &runtime_host)?;
    session.follow_load(&settings);
    session.sample_on_device(settings.device_sampling.value);
    let mut conversation = Conversation::new(session, sampling, template)?;
    conversation.set_system(args.system.clone());
    if let Some(effort) = &args.reasoning_effort {
        conversation.set_effort(effort);
    }
    conversation.set_budget(args.reasoning_budget);
    // The template is checked before the first message, because it may be unusable or reject the system prompt.
    conversation.check()?;
    signals.end();

    let mut input = match typed {
        true => Input::terminal(history(args))?,
        false => Input::Pipe(io::stdin().lock()),
    };
    if typed && !args.json {
        let model = model.description();
        let model = build_info::words::printable(&model);
        let _ = writeln!(io::stderr(), "{model}: /help lists the commands, ctrl-D exits");
    }
    let mut talk = Talk::new(conversation, signals, args.predict, args.json, args.stats, typed);
    let mut failed = false;
    loop {
        match input.next()? {
            Read::Text(text) => match talk.hear(&text)? {
                Next::Went => {}
                Next::Failed => failed = true,
                Next::Leave => break,
            },
            Read::Interrupted => {
                let _ = writeln!(io::stderr(), "ctrl-D or /exit ends the chat");
            }
            Read::End => break,
        }
    }
    // A user at a terminal has seen the error; a script needs the exit code.
    Ok(if failed && !typed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Returns the path of the input history. `None` with `--no-history`. Also `None`, with a warning, if there is no
/// state folder.
fn history(args: &Args) -> Option<PathBuf> {
    if args.no_history {
        return None;
    }
    let folder = host::state::folder();
    if folder.is_none() {
        let _ = writeln!(
            io::stderr(),
            "warning: cannot save the input history: none of ANNEAL_STATE_DIR, XDG_STATE_HOME and HOME is an absolute \
            path"
        );
    }
    Some(folder?.join("chat_history"))
}
