//! Hands over what was prepared of a workload to the control loop that starts it.
//!
//! Thread: [`Giver`] belongs to `scheduler`, [`Taker`] to `wl:<name>`.
//! Whoever comes first has the container: the control loop that starts it, or the scheduler that does not want it to be
//! started any more and has it removed.

use super::prepared::{Given, PreparedContainer};
use crate::model::messages::AddedWorkload;
use crate::platform::sync::Mutex;
use std::sync::Arc;

/// Wakes a control loop.
type Wake = Box<dyn Fn() + Send>;

struct Shared {
    added: AddedWorkload,
    inner: Mutex<Inner>,
}

struct Inner {
    state: State,
    wake: Option<Wake>,
}

enum State {
    /// It is being prepared, or something is being removed first.
    Pending,
    Ready(Given),
    /// The control loop has it.
    Taken,
    /// The scheduler has it back and removes it.
    Withdrawn,
    /// That is done.
    Released,
}

/// The scheduler's end. Clones are the same.
#[derive(Clone)]
pub struct Giver {
    shared: Arc<Shared>,
}

/// The control loop's end.
pub struct Taker {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Taker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Taker")
    }
}

/// What there was to withdraw.
#[derive(Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The control loop has it already.
    Nothing,
    /// Nothing was given yet.
    Pending,
    /// This, which is to be removed.
    Given(Given),
}

/// What a control loop has to do about what it was to start before it ends.
#[derive(Debug, PartialEq, Eq)]
pub enum Remains {
    /// It has to wait until that is removed.
    Wait,
    /// Nothing.
    Nothing,
    /// It has to remove this.
    Container(PreparedContainer),
}

impl Giver {
    /// Something of `added` is going to be given.
    #[must_use]
    pub fn new(added: AddedWorkload) -> Self {
        let inner = Mutex::new(Inner { state: State::Pending, wake: None });
        Self { shared: Arc::new(Shared { added, inner }) }
    }

    /// The other end.
    #[must_use]
    pub fn taker(&self) -> Taker {
        Taker { shared: self.shared.clone() }
    }

    /// What is to be started.
    #[must_use]
    pub fn added(&self) -> &AddedWorkload {
        &self.shared.added
    }

    /// Whether both are the same.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Gives what was prepared.
    pub fn give(&self, given: Given) {
        self.shared.change(|state| match state {
            State::Pending => State::Ready(given),
            other => other,
        });
    }

    /// It is not to be started any more.
    #[must_use]
    pub fn withdraw(&self) -> Withdrawn {
        let mut withdrawn = Withdrawn::Nothing;
        self.shared.change(|state| match state {
            State::Pending => {
                withdrawn = Withdrawn::Pending;
                State::Withdrawn
            }
            State::Ready(given) => {
                withdrawn = Withdrawn::Given(given);
                State::Withdrawn
            }
            other => other,
        });
        withdrawn
    }

    /// What was withdrawn is gone.
    pub fn release(&self) {
        self.shared.change(|state| match state {
            State::Withdrawn => State::Released,
            other => other,
        });
    }
}

impl Shared {
    /// Changes the state and wakes the control loop.
    fn change(&self, next: impl FnOnce(State) -> State) {
        let mut inner = self.inner.lock();
        inner.state = next(std::mem::replace(&mut inner.state, State::Taken));
        if let Some(wake) = &inner.wake {
            wake();
        }
    }
}

impl Taker {
    /// Takes what was given; `None` while it is not known. `wake` is called when that changes.
    #[must_use]
    pub fn take(&self, wake: Wake) -> Option<Given> {
        let mut inner = self.shared.inner.lock();
        match std::mem::replace(&mut inner.state, State::Taken) {
            State::Ready(given) => Some(given),
            State::Released | State::Taken => Some(Given::default()),
            waiting @ (State::Pending | State::Withdrawn) => {
                (inner.state, inner.wake) = (waiting, Some(wake));
                None
            }
        }
    }

    /// What is left to do before the instance counts as removed. `wake` is called when that changes.
    #[must_use]
    pub fn remains(&self, wake: Wake) -> Remains {
        let given = self.take(wake);
        match given.map(|given| given.container) {
            None => Remains::Wait,
            Some(None) => Remains::Nothing,
            Some(Some(container)) => Remains::Container(container),
        }
    }

    /// Whether there is nothing to wait for any more.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        !matches!(self.shared.inner.lock().state, State::Pending | State::Withdrawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::preparation::host_paths::HostPaths;
    use crate::model::prepare_level::PrepareLevel;
    use crate::model::workload::Workload;
    use crate::runtime::ContainerId;

    fn giver() -> Giver {
        let workload = Workload::new("agent_A", "podman", "image: x");
        Giver::new(AddedWorkload { instance: workload.instance_name("w"), workload: Arc::new(workload) })
    }

    fn container() -> PreparedContainer {
        let id = ContainerId("1".into());
        PreparedContainer { id, level: PrepareLevel::Create, paths: HostPaths::default() }
    }

    fn given() -> Given {
        Given { container: Some(container()), unsure: false }
    }

    #[test]
    fn whoever_comes_first_has_the_container() {
        let asleep = || -> Wake { Box::new(|| ()) };
        let (taken, withdrawn) = (giver(), giver());
        let (taker, other) = (taken.taker(), withdrawn.taker());
        [&taken, &withdrawn].into_iter().for_each(|giver| giver.give(given()));
        assert_eq!(taker.take(asleep()), Some(given()));
        assert_eq!((taken.withdraw(), withdrawn.withdraw()), (Withdrawn::Nothing, Withdrawn::Given(given())));
        assert_eq!((other.take(asleep()), other.is_decided()), (None, false));
        withdrawn.give(given());
        assert_eq!((other.take(asleep()), other.remains(asleep())), (None, Remains::Wait));
        withdrawn.release();
        assert!(other.is_decided());
        assert_eq!((other.remains(asleep()), taker.remains(asleep())), (Remains::Nothing, Remains::Nothing));
    }

    #[test]
    fn who_waits_is_woken_by_what_is_given_and_removed() {
        let (woken, wakes) = crossbeam_channel::unbounded();
        let wake = || -> Wake {
            let woken = woken.clone();
            Box::new(move || woken.send(()).unwrap())
        };
        let giver = giver();
        let taker = giver.taker();
        assert_eq!(taker.take(wake()), None);
        giver.give(given());
        assert_eq!((wakes.try_iter().count(), taker.remains(wake())), (1, Remains::Container(container())));
        let giver = self::giver();
        let taker = giver.taker();
        assert_eq!((taker.remains(wake()), giver.withdraw()), (Remains::Wait, Withdrawn::Pending));
        giver.release();
        assert_eq!((wakes.try_iter().count(), taker.remains(wake())), (2, Remains::Nothing));
    }
}
