//! Thread that writes log lines to stderr, so that a slow reader of stderr does not block the server.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Maximum number of lines that wait to be written. Further lines are lost and counted.
const WAITING: usize = 4096;

enum SinkItem {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Destination of log lines.
#[derive(Clone)]
pub struct Sink {
    items: SyncSender<SinkItem>,
    lost: Arc<AtomicU64>,
}

impl Sink {
    /// Starts the writing thread. `None` if it cannot be started.
    pub fn start() -> Option<Self> {
        let (items, waiting) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let work = move || write(&waiting, &counted);
        Builder::new().name("log".to_string()).spawn(work).ok()?;
        Some(Sink { items, lost })
    }

    /// Waits until all lines are written, but at most for `most`.
    pub fn flush(&self, most: Duration) {
        let (done, written) = sync_channel(1);
        // If the queue is full, stderr is not being read, and waiting would not help.
        if self.items.try_send(SinkItem::Flush(done)).is_ok() {
            let _ = written.recv_timeout(most);
        }
    }
}

fn write(waiting: &Receiver<SinkItem>, lost: &AtomicU64) {
    while let Ok(item) = waiting.recv() {
        match item {
            SinkItem::Line(line) => drop(engine_core::terminal::stderr().write_all(&line)),
            SinkItem::Flush(done) => drop(done.try_send(())),
        }
        let count = lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            // The queue has room again, so this warning is logged like any other line.
            tracing::warn!(lines = count, "log lines were lost because stderr was not read in time");
        }
    }
}

/// Log line under construction. Dropping it sends the line.
pub struct LogLine {
    sink: Sink,
    bytes: Vec<u8>,
}

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let line = SinkItem::Line(std::mem::take(&mut self.bytes));
        if let Err(TrySendError::Full(_)) = self.sink.items.try_send(line) {
            self.sink.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Sink {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine { sink: self.clone(), bytes: Vec::new() }
    }
}
