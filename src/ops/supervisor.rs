//! Notifies systemd of the state of the process (sd_notify(3)). Without a supervisor nothing is sent.

use sd_notify::NotifyState;

/// Connections are accepted. This process is the one to supervise, also after it took over from another one.
pub fn ready() {
    tell(&[NotifyState::Ready, NotifyState::MainPid(std::process::id())]);
}

/// A reload begins. `Type=notify-reload` waits for [`ready`].
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => log::debug!("no clock for the supervisor: {error}"),
    }
}

/// The process is about to end.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        log::warn!("the supervisor cannot be told: {error}");
    }
}
