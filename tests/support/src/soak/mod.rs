//! A proxy under hostile clients: the clients, the origins, and what the proxy holds meanwhile.

pub mod figures;
pub mod hostile;
pub mod origin;
pub mod site;
pub mod threads;
pub mod watch;
