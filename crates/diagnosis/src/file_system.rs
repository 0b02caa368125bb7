//! Types of file systems.

/// Types of network file systems and of file systems that a program serves, named as in `/proc/PID/mountinfo`.
const NETWORK: [&str; 16] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse",
    "fuseblk",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
    "virtiofs",
];

/// True if a file system of the type `name` gets its files over the network or from another program.
pub fn is_remote(name: &str) -> bool {
    NETWORK.contains(&name) || name.starts_with("fuse.")
}
