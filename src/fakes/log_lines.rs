//! What a test makes others log.
//!
//! Thread: the one of the test.

use crate::clock::{Clock, SystemClock};
use crate::logging::Sources;
use log::Record;
use std::cell::RefCell;
use std::sync::LazyLock;
use std::time::Instant;

/// The sources of which some of these lines say that further ones are left out.
pub fn suppressed(lines: &[String]) -> std::collections::BTreeSet<&str> {
    let marked = lines
        .iter()
        .filter_map(|line| line.strip_prefix("Many log lines are about '"));
    marked
        .filter_map(|rest| rest.split("': further").next())
        .collect()
}

/// The lines that `body` logs on this thread at the levels that are on by default, with the
/// notes about those left out, as if all came at the same time.
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
