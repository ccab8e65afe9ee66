//! The lines that a test makes other code log.
//!
//! Thread: the one of the test.

use crate::clock::{Clock, SystemClock};
use crate::logging::Sources;
use log::Record;
use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::Instant;

/// The sources whose further lines are left out, according to these lines.
pub fn suppressed(lines: &[String]) -> std::collections::BTreeSet<&str> {
    let mut sources = std::collections::BTreeSet::new();
    for line in lines {
        if let Some(rest) = line.strip_prefix("Many log lines are about '") {
            sources.extend(rest.split("': further").next());
        }
    }
    sources
}

/// The lines that `body` logs on this thread, as if all came at the same time: those of the default
/// levels, with the notes about lines that are left out.
pub fn lines_of(body: impl FnOnce()) -> Vec<String> {
    thread_local! {
        static LINES: RefCell<Option<(Sources, Vec<String>)>> = const { RefCell::new(None) };
    }
    struct Collector(Instant);
    impl log::Log for Collector {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            LINES.with_borrow(Option::is_some)
        }
        fn log(&self, record: &Record<'_>) {
            LINES.with_borrow_mut(|lines| {
                let Some((sources, lines)) = lines else {
                    return;
                };
                let ruling = sources.rule(record, self.0);
                lines.extend(ruling.note);
                if ruling.is_written {
                    lines.push(record.args().to_string());
                }
            });
        }
        fn flush(&self) {}
    }
    static COLLECTOR: LazyLock<Collector> = LazyLock::new(|| Collector(SystemClock.now()));
    let _ = log::set_logger(&*COLLECTOR); // A test before this one may have done so.
    log::set_max_level(log::LevelFilter::Info);
    LINES.set(Some(Default::default()));
    body();
    LINES.take().unwrap_or_default().1
}
