//! The faults of a cluster and their frequency, decided by a seed.
//!
//! Thread: the one of the test.

use super::engine::EngineFaults;
use super::life::PrepareOptions;
use ankaios_model::prepare_level::PrepareLevel;

/// What happens to a cluster, in percent: of calls, of messages, or of the rounds in which
/// something breaks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Disturbances {
    pub engine: EngineFaults,
    /// Messages that may take seconds.
    pub slow_network: u32,
    pub cuts: u32,
    pub agent_kills: u32,
    pub server_kills: u32,
    pub reboots: u32,
    pub crashes: u32,
    pub removals: u32,
    /// A path that preconditions name comes or goes.
    pub paths: u32,
    pub pauses: u32,
    pub stalls: u32,
    /// The server stands still, as by SIGSTOP.
    pub server_pauses: u32,
    /// The next server starts with another manifest.
    pub manifests: u32,
    /// A commander that follows events goes and another one comes.
    pub departures: u32,
    /// Something else breaks at once.
    pub storms: u32,
    /// A new configuration has `--rm`.
    pub self_removals: u32,
    /// An agent prepares starts.
    pub prepares: u32,
    /// Rounds in which a client switches the mode. Without it there are no modes and no hooks.
    pub modes: u32,
    /// A new configuration has a block `update`. It is no fault, but a reason for changes that were
    /// not requested.
    pub guards: u32,
    /// Kills of the server that leave a newest stored state which cannot be read.
    pub damages: u32,
    /// Requests of commanders that are a rollback of a guarded update.
    pub rollbacks: u32,
    /// Requests of commanders that restart workloads, with an update or without.
    pub restarts: u32,
    /// Targets after which control loops continue before the scheduler.
    pub haste: u32,
    /// Workloads that are restarted with those that they need.
    pub followers: u32,
    /// Steps of a state checker after which it gets no processor for a while.
    pub lags: u32,
}

/// Kinds that were added later. A seed without them does the same as before.
pub(crate) const NEWER: [&str; 4] = ["server_pauses", "manifests", "departures", "storms"];
/// As [`NEWER`], for those that came after them.
pub(crate) const NEWEST: [&str; 2] = ["strange_ends", "self_removals"];
/// As [`NEWEST`], for those that came after them.
pub(crate) const LATEST: [&str; 6] = [
    "prepares",
    "modes",
    "guards",
    "damages",
    "rollbacks",
    "restarts",
];
/// As [`LATEST`], for those that came after them.
pub(crate) const LAST: [&str; 3] = ["haste", "followers", "lags"];

/// Draws 0, or a number up to `most`.
fn up_to(random: &mut fastrand::Rng, most: u32) -> u32 {
    if !random.bool() {
        return 0;
    }
    random.u32(0..=most)
}

impl Disturbances {
    /// Draws the frequency of each kind of fault; about half of the kinds never happen. With all
    /// kinds in each seed, rare ones would have no effect among frequent ones.
    pub(crate) fn new(random: &mut fastrand::Rng, seed: u64) -> Self {
        // Kinds that came later draw from a generator of their own, each after all earlier ones.
        let mut newer = fastrand::Rng::with_seed(!seed);
        let mut old = |most| up_to(random, most);
        let mut new = |most| up_to(&mut newer, most);
        let mut disturbances = Self {
            engine: EngineFaults {
                start_fails: old(50),
                start_half_done: old(30),
                start_hangs: old(20),
                delete_fails: old(40),
                stop_hangs: old(20),
                list_fails: old(50),
                list_hangs: old(15),
                list_misses: old(50),
                checks_fail: old(30),
                list_lies: old(10),
                strange_ends: 0,
            },
            slow_network: old(20),
            cuts: old(20),
            agent_kills: old(20),
            server_kills: old(10),
            reboots: old(5),
            crashes: old(30),
            removals: old(10),
            paths: old(20),
            pauses: old(20),
            stalls: old(20),
            server_pauses: new(20),
            manifests: new(60),
            departures: new(40),
            storms: new(70),
            self_removals: new(30),
            prepares: 0,
            modes: up_to(&mut fastrand::Rng::with_seed(seed.rotate_left(32)), 60),
            guards: 0,
            damages: 0,
            rollbacks: 0,
            restarts: 0,
            haste: 0,
            followers: 0,
            lags: 0,
        };
        disturbances.engine.strange_ends = up_to(&mut newer, 30);
        disturbances.prepares = up_to(&mut newer, 150).min(100);
        disturbances.guards = up_to(&mut newer, 80);
        disturbances.damages = up_to(&mut newer, 50);
        disturbances.rollbacks = up_to(&mut newer, 30);
        disturbances.restarts = up_to(&mut newer, 40);
        disturbances.haste = up_to(&mut newer, 100);
        disturbances.followers = up_to(&mut newer, 100);
        disturbances.lags = up_to(&mut newer, 60);
        disturbances
    }

    /// How the agent of a node prepares starts.
    pub(crate) fn preparation(&self, node: &str) -> PrepareOptions {
        let mut seed = u64::from(self.prepares);
        for byte in node.bytes() {
            seed += u64::from(byte);
        }
        let mut random = fastrand::Rng::with_seed(seed);
        if random.u32(0..100) >= self.prepares {
            return PrepareOptions {
                level: PrepareLevel::None,
                initialised_max: 0,
            };
        }
        let levels = [
            PrepareLevel::Image,
            PrepareLevel::Create,
            PrepareLevel::Init,
            PrepareLevel::Init,
        ];
        PrepareOptions {
            level: levels[random.usize(..levels.len())],
            initialised_max: random.usize(0..=3),
        }
    }

    /// Each kind of fault by its name.
    pub(crate) fn kinds(&mut self) -> [(&'static str, &mut u32); 35] {
        let Self {
            engine,
            slow_network,
            cuts,
            agent_kills,
            server_kills,
            reboots,
            crashes,
            removals,
            paths,
            pauses,
            stalls,
            server_pauses,
            manifests,
            departures,
            storms,
            self_removals,
            prepares,
            modes,
            guards,
            damages,
            rollbacks,
            restarts,
            haste,
            followers,
            lags,
        } = self;
        [
            ("start_fails", &mut engine.start_fails),
            ("start_half_done", &mut engine.start_half_done),
            ("start_hangs", &mut engine.start_hangs),
            ("delete_fails", &mut engine.delete_fails),
            ("stop_hangs", &mut engine.stop_hangs),
            ("list_fails", &mut engine.list_fails),
            ("list_hangs", &mut engine.list_hangs),
            ("list_misses", &mut engine.list_misses),
            ("list_lies", &mut engine.list_lies),
            ("checks_fail", &mut engine.checks_fail),
            ("slow_network", slow_network),
            ("cuts", cuts),
            ("agent_kills", agent_kills),
            ("server_kills", server_kills),
            ("reboots", reboots),
            ("crashes", crashes),
            ("removals", removals),
            ("paths", paths),
            ("pauses", pauses),
            ("stalls", stalls),
            ("server_pauses", server_pauses),
            ("manifests", manifests),
            ("departures", departures),
            ("storms", storms),
            ("strange_ends", &mut engine.strange_ends),
            ("self_removals", self_removals),
            ("prepares", prepares),
            ("modes", modes),
            ("guards", guards),
            ("damages", damages),
            ("rollbacks", rollbacks),
            ("restarts", restarts),
            ("haste", haste),
            ("followers", followers),
            ("lags", lags),
        ]
    }
}
