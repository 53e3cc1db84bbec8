//! A disk in memory that loses, tears, reorders and fails.

use std::collections::BTreeMap;
use std::io::{self, Cursor, Read};
use std::sync::{Arc, Mutex};

use tollgate::state::{DiskFile, StateDisk, SyncJob, SyncRunner};

/// What the disk does wrong, each with a probability of one in this many; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub error: u32,
    pub full: u32,
    /// Errors of syncs only.
    pub sync: u32,
}

#[derive(Clone, Debug, Default)]
struct StoredFile {
    /// What is on the disk for certain.
    synced: Vec<u8>,
    /// Writes since then, which a loss of power may lose, tear and reorder.
    unsynced: Vec<Vec<u8>>,
    /// Whether the name is on the disk.
    is_named: bool,
}

impl StoredFile {
    fn content(&self) -> Vec<u8> {
        let mut content = self.synced.clone();
        self.unsynced.iter().for_each(|write| content.extend(write));
        content
    }
}

struct State {
    files: BTreeMap<String, StoredFile>,
    /// Removed files whose names may come back.
    removed: BTreeMap<String, StoredFile>,
    faults: Faults,
    /// Bytes that can still be written; `None`: any number.
    room: Option<usize>,
    random: fastrand::Rng,
}

#[derive(Clone)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

struct SimulatedFile {
    disk: SimulatedDisk,
    name: String,
}

/// Syncs that take until the test ends them.
#[derive(Clone, Default)]
pub struct LateSyncs(Arc<Mutex<LateState>>);

#[derive(Default)]
struct LateState {
    job: Option<SyncJob>,
    result: Option<io::Result<()>>,
    started: u32,
}

impl LateSyncs {
    /// How many were started.
    pub fn started(&self) -> u32 {
        self.0.lock().unwrap().started
    }

    /// Whether one was started and has not ended.
    pub fn is_running(&self) -> bool {
        self.0.lock().unwrap().job.is_some()
    }

    /// The disk has got what was started. The process does not know it yet.
    pub fn end(&self) -> bool {
        let mut state = self.0.lock().unwrap();
        let job = state.job.take();
        state.result = job.as_ref().map(SyncJob::run).or(state.result.take());
        job.is_some()
    }
}

impl SyncRunner for LateSyncs {
    fn start(&mut self, job: SyncJob) {
        let mut state = self.0.lock().unwrap();
        assert!(state.job.is_none() && state.result.is_none(), "one sync at a time");
        state.job = Some(job);
        state.started += 1;
    }

    fn take_result(&mut self) -> Option<io::Result<()>> {
        self.0.lock().unwrap().result.take()
    }

    fn wait(&mut self) -> io::Result<()> {
        self.end();
        self.take_result().unwrap()
    }
}

impl SimulatedDisk {
    pub fn new(seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let (files, removed) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State {
            files,
            removed,
            faults: Faults::default(),
            room: None,
            random,
        })))
    }

    pub fn set_faults(&self, faults: Faults) {
        self.0.lock().unwrap().faults = faults;
    }

    /// From now on so many bytes can be written, as well as those of files that are removed.
    pub fn set_room(&self, room: Option<usize>) {
        self.0.lock().unwrap().room = room;
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.0.lock().unwrap().files.values().map(|file| file.content().len()).sum()
    }

    /// The process dies. What it wrote stays.
    pub fn after_kill(&self) -> Self {
        let mut state = self.0.lock().unwrap();
        let (files, removed) = (state.files.clone(), state.removed.clone());
        let random = state.random.fork();
        Self(Arc::new(Mutex::new(State {
            files,
            removed,
            faults: Faults::default(),
            room: None,
            random,
        })))
    }

    /// The power fails: of what was not brought to the disk, any part may be left, in any order and torn.
    pub fn after_power_loss(&self) -> Self {
        let mut state = self.0.lock().unwrap();
        let mut random = state.random.fork();
        let mut files = BTreeMap::new();
        for (name, file) in state.files.iter().chain(&state.removed) {
            let is_removed = !state.files.contains_key(name);
            if (is_removed || !file.is_named) && random.bool() {
                continue;
            }
            let synced = left_after_power_loss(file, &mut random);
            files.insert(name.clone(), StoredFile { synced, unsynced: Vec::new(), is_named: true });
        }
        let removed = BTreeMap::new();
        Self(Arc::new(Mutex::new(State {
            files,
            removed,
            faults: Faults::default(),
            room: None,
            random,
        })))
    }

    /// Damages one byte of a file.
    pub fn damage(&self, name: &str, at: usize) {
        let mut state = self.0.lock().unwrap();
        let file = state.files.get_mut(name).unwrap();
        file.synced = file.content();
        file.unsynced.clear();
        file.synced[at] ^= 0x55;
    }

    pub fn content(&self, name: &str) -> Vec<u8> {
        self.0.lock().unwrap().files[name].content()
    }

    pub fn put(&self, name: &str, content: Vec<u8>) {
        let file = StoredFile { synced: content, unsynced: Vec::new(), is_named: true };
        self.0.lock().unwrap().files.insert(name.to_owned(), file);
    }

    fn fault(&self) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        let Faults { error, full, .. } = state.faults;
        if error > 0 && state.random.u32(..error) == 0 {
            return Err(io::Error::other("input/output error"));
        }
        if full > 0 && state.random.u32(..full) == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

fn left_after_power_loss(file: &StoredFile, random: &mut fastrand::Rng) -> Vec<u8> {
    let mut content = file.synced.clone();
    let mut at = content.len();
    for write in &file.unsynced {
        let part = match random.u8(..4) {
            0 => 0,
            1 => random.usize(..=write.len()),
            _ => write.len(),
        };
        if part > 0 {
            // A hole before it reads as zeros.
            content.resize(content.len().max(at), 0);
            content.truncate(at);
            content.extend(&write[..part]);
        }
        at += write.len();
    }
    content
}

impl StateDisk for SimulatedDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.fault()?;
        let mut state = self.0.lock().unwrap();
        if state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(name.to_owned(), StoredFile::default());
        Ok(Arc::new(SimulatedFile { disk: self.clone(), name: name.to_owned() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Read + Send>> {
        let state = self.0.lock().unwrap();
        let file = state.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(Cursor::new(file.content())))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.0.lock().unwrap().files.keys().cloned().collect())
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        let state = self.0.lock().unwrap();
        let file = state.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(file.content().len() as u64)
    }

    fn free(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().room.map_or(u64::MAX, |room| room as u64))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.fault()?;
        let mut state = self.0.lock().unwrap();
        let file = state.files.remove(name).ok_or(io::ErrorKind::NotFound)?;
        if let Some(room) = &mut state.room {
            *room += file.content().len();
        }
        state.removed.insert(name.to_owned(), file);
        Ok(())
    }

    fn sync_file(&self, name: &str) -> io::Result<()> {
        SimulatedFile { disk: self.clone(), name: name.to_owned() }.sync()
    }

    fn sync_names(&self) -> io::Result<()> {
        self.fault()?;
        let mut state = self.0.lock().unwrap();
        state.files.values_mut().for_each(|file| file.is_named = true);
        state.removed.clear();
        Ok(())
    }

    fn restore_folder(&self) -> io::Result<bool> {
        self.fault().map(|()| false)
    }

    fn check_folder(&self) -> io::Result<()> {
        Ok(())
    }

    fn move_away(&self, _: &[String]) -> io::Result<()> {
        unreachable!("nobody else writes here")
    }
}

impl DiskFile for SimulatedFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let failed = self.disk.fault();
        let mut state = self.disk.0.lock().unwrap();
        // A write that fails may have written a part.
        let mut written = match failed {
            Ok(()) => bytes.len(),
            Err(_) => state.random.usize(..=bytes.len()),
        };
        let mut failed = failed;
        if let Some(room) = &mut state.room {
            if written > *room {
                written = *room;
                failed = Err(io::ErrorKind::StorageFull.into());
            }
            *room -= written;
        }
        let file = state.files.get_mut(&self.name).ok_or(io::ErrorKind::NotFound)?;
        file.unsynced.push(bytes[..written].to_vec());
        failed
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.fault()?;
        let mut state = self.disk.0.lock().unwrap();
        let sync = state.faults.sync;
        if sync > 0 && state.random.u32(..sync) == 0 {
            return Err(io::Error::other("input/output error"));
        }
        let file = state.files.get_mut(&self.name).ok_or(io::ErrorKind::NotFound)?;
        file.synced = file.content();
        file.unsynced.clear();
        Ok(())
    }

    fn is_linked(&self) -> io::Result<bool> {
        Ok(self.disk.0.lock().unwrap().files.contains_key(&self.name))
    }
}
