//! File systems on which pages of a mapped model file can become unreadable while the file is in use.

use std::fmt;
use std::path::Path;

/// Reason why a mapped file can lose pages even if no program on this machine changes the file. If a thread reads a
/// lost page, the kernel sends SIGBUS, which ends the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageLoss {
    /// Another machine can shorten the file, and the connection can fail.
    Network(&'static str),
    /// A program answers the kernel's reads, and may end or report another length.
    Fuse,
    /// The device can be unplugged.
    Removable,
}

impl fmt::Display for PageLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PageLoss::Network(name) => write!(f, "a network file system ({name})"),
            PageLoss::Fuse => f.write_str("a FUSE file system"),
            PageLoss::Removable => f.write_str("a removable device"),
        }
    }
}

/// Magic numbers of file systems (statfs(2), and `linux/magic.h`).
const NETWORK: [(u32, &str); 14] = [
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x0102_1997, "9p"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x6b41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x2003_0528, "OrangeFS"),
    (0x0116_1970, "GFS2"),
    (0x786f_4256, "vboxsf"),
];

/// Magic number of FUSE, which sshfs, rclone, virtiofs and others use.
const FUSE: u32 = 0x6573_5546;

/// Returns the reason why files on a file system with the magic number `magic` can lose pages.
fn of_magic(magic: u32) -> Option<PageLoss> {
    let network = NETWORK.iter().find(|(number, _)| *number == magic);
    let network = network.map(|(_, name)| PageLoss::Network(name));
    network.or_else(|| (magic == FUSE).then_some(PageLoss::Fuse))
}

impl PageLoss {
    /// Returns the reason why the file at `path`, if it is mapped, can lose pages. `None` if there is no reason, or if
    /// the file system is unknown.
    #[cfg(target_os = "linux")]
    pub fn of(path: &Path) -> Option<Self> {
        // Magic numbers have 32 bits, but the type of the field differs between architectures.
        let magic = rustix::fs::statfs(path).ok()?.f_type as u32;
        of_magic(magic).or_else(|| {
            let device = rustix::fs::stat(path).ok()?.st_dev;
            let number = (rustix::fs::major(device), rustix::fs::minor(device));
            is_removable(Path::new("/sys/dev/block"), number).then_some(PageLoss::Removable)
        })
    }

    /// Returns `None`: file systems are detected only on Linux.
    #[cfg(not(target_os = "linux"))]
    pub fn of(_: &Path) -> Option<Self> {
        None
    }
}

/// True if the block device with the number `number` is removable or is connected by USB. `devices` is the folder
/// `/sys/dev/block`. Many USB disks report that they are not removable.
fn is_removable(devices: &Path, (major, minor): (u32, u32)) -> bool {
    // The entry of a partition is a link to a folder inside its disk's folder.
    let Ok(device) = devices.join(format!("{major}:{minor}")).canonicalize() else { return false };
    let is_set = |folder: &Path| {
        std::fs::read_to_string(folder.join("removable")).is_ok_and(|text| text.trim() == "1")
    };
    let is_usb = device.iter().any(|folder| {
        let number = folder.to_str().and_then(|name| name.strip_prefix("usb"));
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    });
    is_usb || is_set(&device) || device.parent().is_some_and(is_set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_file_systems_of_this_machines_disks_are_mapped() {
        let cases = [
            (0x0000_6969, "a network file system (NFS)"),
            (0xfe53_4d42, "a network file system (SMB2)"),
            (0x0102_1997, "a network file system (9p)"),
            (0x6573_5546, "a FUSE file system"),
            (0x0000_ef53, ""), // ext4
            (0x5846_5342, ""), // XFS
            (0x9123_683e, ""), // Btrfs
            (0x0102_1994, ""), // tmpfs
            (0x794c_7630, ""), // overlayfs
            (0x0000_4d44, ""), // FAT, on a disk that is not removable
        ];
        for (magic, expected) in cases {
            let found = of_magic(magic).map_or(String::new(), |loss| loss.to_string());
            assert_eq!(found, expected, "{magic:x}");
        }
        let mut numbers: Vec<u32> = NETWORK.iter().map(|(number, _)| *number).chain([FUSE]).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), NETWORK.len() + 1);
    }

    #[test]
    #[cfg(unix)]
    fn usb_disks_and_their_partitions_are_removable() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (block, devices) = (folder.path().join("block"), folder.path().join("devices"));
        std::fs::create_dir(&block).expect("a folder");
        for (number, disk, partition, removable) in [
            ("8:1", "pci0/ata1/block/sda", "sda1", "0"),
            ("8:17", "pci0/usb2/2-1/block/sdb", "sdb1", "0"),
            ("11:0", "pci0/ata2/block/sr0", "", "1"),
            ("179:1", "mmc0/block/mmcblk0", "mmcblk0p1", "1"),
            ("8:33", "pci0/usb-like/block/sdc", "sdc1", "0"),
        ] {
            let disk = devices.join(disk);
            let device = disk.join(partition);
            std::fs::create_dir_all(&device).expect("a folder");
            std::fs::write(disk.join("removable"), format!("{removable}\n")).expect("written");
            std::os::unix::fs::symlink(&device, block.join(number)).expect("a link");
        }
        for (number, expected) in [
            ((8, 1), false),
            ((8, 17), true),
            ((11, 0), true),
            ((179, 1), true),
            ((8, 33), false),
            ((0, 40), false),
        ] {
            assert_eq!(is_removable(&block, number), expected, "{number:?}");
        }
    }
}
