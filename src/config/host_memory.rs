//! How much memory there is for this process: the machine's, or its control group's if that is less.

use std::path::Path;
use std::sync::OnceLock;

/// The smallest budget.
pub(super) const MIN_MEMORY: usize = 16 << 20;

/// The budget is what there is divided by this: cells, sketches, sockets' buffers in the kernel and other
/// processes need the rest.
const SHARE: u64 = 4;

/// What there is assumed to be where the system does not tell.
const UNKNOWN: u64 = 2 << 30;

/// `limits_of_this_proxy.memory: auto`, in bytes. Read once: the budget of a process does not change because
/// a file is read again.
pub(super) fn memory_share() -> usize {
    static SHARE_OF_THIS_MACHINE: OnceLock<usize> = OnceLock::new();
    *SHARE_OF_THIS_MACHINE.get_or_init(|| {
        let all = memory_below(Path::new("/")).unwrap_or(UNKNOWN);
        usize::try_from(all / SHARE).unwrap_or(usize::MAX).max(MIN_MEMORY)
    })
}

/// The least of the machine's memory and of the limits of the process's control group and of those around it
/// (cgroups(7), version 2, and version 1 as containers mount it), in bytes.
fn memory_below(root: &Path) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let machine = read("proc/meminfo").and_then(|text| total(&text));
    let number = |path: &str| read(path).and_then(|text| text.trim().parse::<u64>().ok());
    let group = read("proc/self/cgroup").and_then(|text| own_group(&text)).unwrap_or_default();
    // The last of them is the group that the container or the machine itself sees as its root.
    let around = Path::new(&group).ancestors().filter_map(|one| {
        let name = one.to_str()?.trim_matches('/');
        number(&format!("sys/fs/cgroup/{name}/memory.max"))
    });
    let limits = around.chain(number("sys/fs/cgroup/memory/memory.limit_in_bytes"));
    machine.into_iter().chain(limits).min()
}

/// `MemTotal: 16316412 kB` of proc_meminfo(5).
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The path in a line `0::/system.slice/tollgate.service`.
fn own_group(cgroup: &str) -> Option<String> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What there is on a machine with these files.
    fn memory_with(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        memory_below(root.path())
    }

    #[test]
    fn the_least_of_machine_and_control_groups_counts() {
        let machine = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
        let own = ("proc/self/cgroup", "0::/system.slice/tollgate.service\n");
        const GIB: u64 = 1 << 30;
        assert_eq!(memory_with(&[]), None);
        assert_eq!(memory_with(&[machine]), Some(16 * GIB));
        let container = ("sys/fs/cgroup/memory.max", "536870912\n");
        assert_eq!(memory_with(&[machine, container]), Some(GIB / 2));
        let unlimited = ("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(memory_with(&[machine, unlimited]), Some(16 * GIB));
        let slice = ("sys/fs/cgroup/system.slice/memory.max", "8589934592\n");
        let service = ("sys/fs/cgroup/system.slice/tollgate.service/memory.max", "1073741824\n");
        assert_eq!(memory_with(&[machine, own, slice]), Some(8 * GIB));
        assert_eq!(memory_with(&[machine, own, slice, service]), Some(GIB));
        let first = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
        assert_eq!(memory_with(&[machine, first]), Some(2 * GIB));
        let broken = ("proc/meminfo", "MemTotal: much\n");
        assert_eq!(memory_with(&[broken, slice]), None, "not of this group");
    }

    #[test]
    fn this_machine_has_some() {
        assert!(memory_share() >= MIN_MEMORY);
    }
}
