//! The default of `limits_of_this_proxy.memory`: a share of the memory that this process may use.
//! That is the memory of the machine, or the smallest limit of the process's control groups if that is
//! less. This module does not know what the memory is used for.

use std::path::Path;
use std::sync::OnceLock;

/// Smallest budget, in bytes.
pub(super) const MIN_MEMORY: usize = 16 << 20;

/// The budget is the available memory divided by this. Cells, sketches, socket buffers of the
/// kernel and other programs need the rest.
const BUDGET_DIVISOR: u64 = 4;

/// Assumed memory if the system does not report it, in bytes.
const ASSUMED_MEMORY: u64 = 2 << 30;

/// `limits_of_this_proxy.memory: auto`, in bytes. It is computed once, so that a reload does not
/// change the budget.
pub(super) fn default_memory_budget() -> usize {
    static BUDGET: OnceLock<usize> = OnceLock::new();
    *BUDGET.get_or_init(|| {
        let available = available_memory(Path::new("/")).unwrap_or(ASSUMED_MEMORY);
        usize::try_from(available / BUDGET_DIVISOR).unwrap_or(usize::MAX).max(MIN_MEMORY)
    })
}

/// The memory of the machine, or the smallest limit of the process's control group and its ancestors
/// if that is less, in bytes. Reads cgroups(7) version 2, and version 1 as containers mount it.
/// `root` is the root of the file system.
fn available_memory(root: &Path) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let machine = read("proc/meminfo").and_then(|text| total_memory(&text));
    let number = |path: &str| read(path).and_then(|text| text.trim().parse::<u64>().ok());
    let group = read("proc/self/cgroup").and_then(|text| own_group(&text)).unwrap_or_default();
    // The last ancestor is the group that the container, or the machine, sees as its root.
    let groups = Path::new(&group).ancestors().filter_map(|group| {
        let name = group.to_str()?.trim_matches('/');
        number(&format!("sys/fs/cgroup/{name}/memory.max"))
    });
    let limits = groups.chain(number("sys/fs/cgroup/memory/memory.limit_in_bytes"));
    machine.into_iter().chain(limits).min()
}

/// `MemTotal: 16316412 kB` of proc_meminfo(5), in bytes.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The path in a line such as `0::/system.slice/tollgate.service`.
fn own_group(cgroup: &str) -> Option<String> {
    cgroup.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The available memory of a machine with these files.
    fn memory_with(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        available_memory(root.path())
    }

    #[test]
    fn the_smallest_of_machine_and_control_groups_counts() {
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
        assert_eq!(
            memory_with(&[broken, slice]),
            None,
            "the slice is not an ancestor of this group"
        );
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(default_memory_budget() >= MIN_MEMORY);
    }
}
