//! CPU and memory load of the node, from `/proc`.
//!
//! Thread: `scheduler`, every [`crate::limits::LOAD_INTERVAL`]; `usage` and `metrics` for
//! [`node_usage`].

use ankaios_model::usage::NodeUsage;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Clock ticks of a second in the files below `/proc`, on all architectures that agents run on.
pub(crate) const TICKS_PER_SECOND: u64 = 100;
/// The usual size of a file below `/proc`. Longer ones are read as well.
const FILE_BYTES: usize = 4096;

/// Samples the load. The usage of the CPU is that since the last sample.
#[derive(Debug)]
pub struct LoadSampler {
    proc: PathBuf,
    last: CpuTimes,
}

/// The load of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeLoad {
    /// The usage of all cores together, in whole percent.
    pub(crate) cpu_usage: u32,
    /// The free memory, in bytes.
    pub(crate) free_memory: u64,
}

/// Clock ticks of all cores since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct CpuTimes {
    busy: u64,
    idle: u64,
}

impl LoadSampler {
    /// Returns a sampler of the files below `proc`, normally `/proc`. The first sample is the
    /// average since boot.
    pub fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            last: CpuTimes::default(),
        }
    }

    /// Takes a sample; `None` when `/proc` cannot be read.
    pub(crate) fn sample(&mut self) -> Option<NodeLoad> {
        let stat = text(&self.proc.join("stat")).ok()?;
        let meminfo = text(&self.proc.join("meminfo")).ok()?;
        let times = cpu_times(&stat)?;
        let free_memory = memory_entry(&meminfo, "MemFree:")?;
        let cpu_usage = usage_percent(self.last, times);
        self.last = times;
        log::trace!("CPU usage {cpu_usage} %, free memory {free_memory} bytes");
        Some(NodeLoad {
            cpu_usage,
            free_memory,
        })
    }
}

/// When the machine booted, in seconds since 1970; `None` when `/proc` cannot be read.
pub(crate) fn boot_time() -> Option<u64> {
    btime(&text(Path::new("/proc/stat")).ok()?)
}

/// The usage of the node, from the files below `proc`, normally `/proc`. A value that cannot be
/// read is `None`.
pub(crate) fn node_usage(proc: &Path) -> NodeUsage {
    let stat = text(&proc.join("stat")).unwrap_or_default();
    let memory = text(&proc.join("meminfo")).unwrap_or_default();
    let mut cores = 0;
    for line in stat.lines() {
        if is_line_of_core(line) {
            cores += 1;
        }
    }
    let times = cpu_times(&stat);
    NodeUsage {
        cores: if cores > 0 { Some(cores) } else { None },
        cpu_busy_usec: times.map(|times| times.busy.saturating_mul(1_000_000 / TICKS_PER_SECOND)),
        memory_total_bytes: memory_entry(&memory, "MemTotal:"),
        memory_available_bytes: memory_entry(&memory, "MemAvailable:"),
    }
}

/// Whether a line of `/proc/stat` is that of one core.
fn is_line_of_core(line: &str) -> bool {
    match line.strip_prefix("cpu") {
        Some(rest) => rest.starts_with(|first: char| first.is_ascii_digit()),
        None => false,
    }
}

/// Reads a file below `/proc`. Its size is reported as 0, for which the standard library would read
/// it in many small pieces. So there is a buffer, and `take` hides that size.
fn text(path: &Path) -> io::Result<String> {
    let mut text = String::with_capacity(FILE_BYTES);
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The time of the boot in `/proc/stat`, in seconds since 1970.
fn btime(stat: &str) -> Option<u64> {
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    seconds.trim().parse().ok()
}

/// The times of all cores together in `/proc/stat`.
fn cpu_times(stat: &str) -> Option<CpuTimes> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line
        .split_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    // The time of guests, which follows, is a part of `user` and `nice`.
    let &[user, nice, system, idle, iowait, irq, softirq, steal, ..] = numbers.as_slice() else {
        return None;
    };
    Some(CpuTimes {
        busy: sum(&[user, nice, system, irq, softirq, steal]),
        idle: sum(&[idle, iowait]),
    })
}

fn sum(parts: &[u64]) -> u64 {
    let mut sum = 0_u64;
    for part in parts {
        sum = sum.saturating_add(*part);
    }
    sum
}

/// The busy time between two samples in percent, rounded half up. The kernel's idle counters may go
/// back a little.
fn usage_percent(before: CpuTimes, now: CpuTimes) -> u32 {
    let busy = u128::from(now.busy.saturating_sub(before.busy));
    let total = busy + u128::from(now.idle.saturating_sub(before.idle));
    if total == 0 {
        return 0;
    }
    u32::try_from((200 * busy + total) / (2 * total)).unwrap_or(100) // Plus a half, rounded down.
}

/// The bytes behind `name` in `/proc/meminfo`.
fn memory_entry(memory: &str, name: &str) -> Option<u64> {
    let value = memory.lines().find_map(|line| line.strip_prefix(name))?;
    let digits = value.trim().strip_suffix("kB")?;
    let kibibytes: u64 = digits.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn usage_is_the_busy_share_between_two_samples_rounded_half_up() {
        let times = |busy, idle| CpuTimes { busy, idle };
        for (before, now, percent) in [
            (times(0, 0), times(0, 0), 0),
            (times(0, 0), times(1, 199), 1),
            (times(0, 0), times(1, 200), 0),
            (times(0, 0), times(1, 0), 100),
            (times(100, 100), times(150, 150), 50),
            (times(100, 100), times(199, 101), 99),
            (times(100, 100), times(90, 90), 0),
            (times(0, 0), times(u64::MAX, 0), 100),
        ] {
            assert_eq!(usage_percent(before, now), percent, "{before:?} {now:?}");
        }
    }

    #[test]
    fn kernel_texts_are_read_and_nonsense_is_refused() {
        let stat = "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 1 1 1 1 1 1 1 1 1\nbtime 1700000000\n";
        assert_eq!(
            cpu_times(stat),
            Some(CpuTimes {
                busy: 1 + 2 + 3 + 6 + 7 + 8,
                idle: 4 + 5
            })
        );
        assert_eq!(btime(stat), Some(1_700_000_000));
        for nonsense in [
            "",
            "cpu  1 2 3\n",
            "cpu  a b c d e f g h\n",
            "cpu0 1 2 3 4 5 6 7 8\n",
        ] {
            assert_eq!(cpu_times(nonsense), None, "{nonsense:?}");
        }
        assert_eq!(
            memory_entry(
                "MemTotal: 9 kB\nMemFree:   2048 kB\nMemAvailable: 1 kB\n",
                "MemFree:"
            ),
            Some(2_097_152)
        );
        for nonsense in [
            "",
            "MemFree: 5\n",
            "MemFree: x kB\n",
            "MemFree: 99999999999999999999 kB\n",
        ] {
            assert_eq!(memory_entry(nonsense, "MemFree:"), None, "{nonsense:?}");
        }
    }

    #[test]
    fn the_first_sample_is_the_average_since_boot() {
        let proc = tempfile::tempdir().unwrap();
        let write = |stat: &str| {
            fs::write(proc.path().join("stat"), stat).unwrap();
            fs::write(proc.path().join("meminfo"), "MemFree: 1 kB\n").unwrap();
        };
        let mut sampler = LoadSampler::new(proc.path());
        assert_eq!(sampler.sample(), None);
        write("cpu  10 0 0 30 0 0 0 0 0 0\n");
        let sampled = |cpu_usage| {
            Some(NodeLoad {
                cpu_usage,
                free_memory: 1024,
            })
        };
        assert_eq!(sampler.sample(), sampled(25));
        write("cpu  20 0 0 30 0 0 0 0 0 0\n");
        assert_eq!(sampler.sample(), sampled(100));
    }
}
