//! NUMA placement of threads and memory.

use std::fmt;
use std::io;
use std::str::FromStr;

/// Placement of a process on the NUMA nodes of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumaPlacement {
    /// Threads and memory on one node.
    Node(u32),
    /// Pages of memory on all nodes in turn. The kernel schedules the threads.
    Interleave,
    /// Threads on all nodes in turn, each bound to a CPU. A page of memory is placed on the node of the thread that
    /// first touches the page.
    Spread,
}

impl FromStr for NumaPlacement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let node = |text: &str| text.parse().ok().filter(|node| *node < MAX_NODES).map(NumaPlacement::Node);
        let read = match text {
            "interleave" => Some(NumaPlacement::Interleave),
            "spread" => Some(NumaPlacement::Spread),
            _ => text.strip_prefix("node:").and_then(node),
        };
        read.ok_or_else(|| format!("unknown NUMA placement {text:?}: use node:N, interleave or spread"))
    }
}

impl fmt::Display for NumaPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NumaPlacement::Node(node) => write!(f, "node:{node}"),
            NumaPlacement::Interleave => f.write_str("interleave"),
            NumaPlacement::Spread => f.write_str("spread"),
        }
    }
}

/// Maximum number of nodes that the Linux kernel supports (`CONFIG_NODES_SHIFT` is at most 10).
const MAX_NODES: u32 = 1024;

/// Binds all memory that this thread and its future threads allocate to `node`.
///
/// # Errors
/// If the kernel refuses the policy, for example because the process may not use the node.
pub fn bind_memory(node: u32) -> io::Result<()> {
    set_policy(libc::MPOL_BIND, &[node])
}

/// Distributes the pages that this thread and its future threads allocate over `nodes`.
///
/// # Errors
/// If the kernel refuses the policy.
pub fn interleave_memory(nodes: &[u32]) -> io::Result<()> {
    set_policy(libc::MPOL_INTERLEAVE, nodes)
}

fn set_policy(mode: i32, nodes: &[u32]) -> io::Result<()> {
    const BITS: u32 = usize::BITS;
    let mut mask = [0_usize; (MAX_NODES / BITS) as usize];
    for node in nodes.iter().filter(|node| **node < MAX_NODES) {
        mask[(node / BITS) as usize] |= 1 << (node % BITS);
    }
    // The kernel reads one bit less than the given number.
    let bits = libc::c_ulong::from(MAX_NODES + 1);
    // SAFETY: the kernel reads `MAX_NODES` bits of the mask, which has as many bits.
    match unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask.as_ptr(), bits) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_are_parsed() {
        for text in ["node:0", "node:1023", "interleave", "spread"] {
            assert_eq!(text.parse::<NumaPlacement>().map(|read| read.to_string()).as_deref(), Ok(text));
        }
        for text in ["", "node", "node:", "node:-1", "node:1024", "node:4294967296", "numactl"] {
            assert!(text.parse::<NumaPlacement>().is_err_and(|why| why.contains("use node:N")), "{text}");
        }
    }
}
