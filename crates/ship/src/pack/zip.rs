//! Writer of ZIP archives, the format of wheels. The bytes depend only on the members' names, contents, permissions and
//! order, and on the modification time that all members share. APPNOTE.TXT of PKWARE describes the format.

use std::io::{Read, Write};

use anyhow::{Context, Result, ensure};
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use install::files;

/// Version of the format that a reader needs for deflate.
const NEEDED: u16 = 20;
/// Version of the format and, in the upper byte, the system that defines the permissions: Unix.
const MADE_BY: u16 = (3 << 8) | NEEDED;
/// Flag of a name in UTF-8.
const UTF8: u16 = 1 << 11;
/// Number of the compression method deflate.
const DEFLATE: u16 = 8;
/// File type bits of a regular file.
const REGULAR: u32 = 0o100_000;

/// Archive that is being written.
pub struct Zip<W: Write> {
    to: W,
    /// Number of bytes written so far.
    written: u64,
    /// Records of the members for the directory at the end.
    directory: Vec<u8>,
    count: u16,
    /// Time of all members in MS-DOS's notation: the time of day, then the date.
    time: (u16, u16),
}

impl<W: Write> Zip<W> {
    /// Starts an archive whose members all have the modification time `mtime`, in seconds since 1970.
    pub fn new(to: W, mtime: u64) -> Self {
        Self { to, written: 0, directory: Vec::new(), count: 0, time: dos_time(mtime) }
    }

    /// Writes the member `name` with the content of `from`.
    ///
    /// # Errors
    /// If `from` cannot be read, the archive cannot be written, or the archive exceeds the limits of ZIP without
    /// extensions: 4 GiB and 65,535 members.
    pub fn member(&mut self, name: &str, from: impl Read, executable: bool) -> Result<()> {
        let mut crc = Crc::new();
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
        let size = files::copy(from, &mut packed, |piece| crc.update(piece))?;
        let packed = packed.finish()?;
        let small =
            |number: u64| u32::try_from(number).with_context(|| format!("{name} is too large for ZIP"));
        let length =
            u16::try_from(name.len()).with_context(|| format!("the name {name} is too long for ZIP"))?;
        let offset = small(self.written)?;
        let mut common = Vec::new();
        for number in [NEEDED, UTF8, DEFLATE, self.time.0, self.time.1] {
            common.extend(number.to_le_bytes());
        }
        for number in [crc.sum(), small(packed.len() as u64)?, small(size)?] {
            common.extend(number.to_le_bytes());
        }
        common.extend(length.to_le_bytes());
        // Length of the extra fields.
        common.extend([0; 2]);

        let mut local = b"PK\x03\x04".to_vec();
        local.extend(&common);
        local.extend(name.as_bytes());
        self.write(&local)?;
        self.write(&packed)?;

        let mode = REGULAR | if executable { 0o755 } else { 0o644 };
        self.directory.extend(b"PK\x01\x02");
        self.directory.extend(MADE_BY.to_le_bytes());
        self.directory.extend(&common);
        // Length of the comment, number of the disk, internal attributes.
        self.directory.extend([0; 6]);
        self.directory.extend((mode << 16).to_le_bytes());
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(name.as_bytes());
        self.count =
            self.count.checked_add(1).context("a ZIP archive cannot have more than 65,535 members")?;
        Ok(())
    }

    /// Writes the directory and returns the underlying writer.
    ///
    /// # Errors
    /// If the archive cannot be written or is larger than 4 GiB.
    pub fn finish(mut self) -> Result<W> {
        let (directory, start) = (std::mem::take(&mut self.directory), self.written);
        self.write(&directory)?;
        ensure!(self.written < u64::from(u32::MAX), "the archive is too large for ZIP");
        let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
        end.extend([self.count.to_le_bytes(), self.count.to_le_bytes()].concat());
        end.extend(u32::try_from(directory.len())?.to_le_bytes());
        end.extend(u32::try_from(start)?.to_le_bytes());
        end.extend([0; 2]);
        self.write(&end)?;
        Ok(self.to)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).context("cannot write the archive")?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

/// Returns the time of day and the date of `seconds` since 1970 in MS-DOS's notation, which covers the years 1980 to
/// 2107. A time outside this range becomes the nearest time in the range.
fn dos_time(seconds: u64) -> (u16, u16) {
    const FIRST: u64 = 315_532_800;
    const LAST: u64 = 4_354_819_198;
    let seconds = seconds.clamp(FIRST, LAST);
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let time = ((rest / 3600) << 11) | ((rest / 60 % 60) << 5) | (rest % 60 / 2);
    let date = ((year - 1980) << 9) | (month << 5) | (days + 1);
    // The clamp above keeps both numbers within 16 bits.
    (u16::try_from(time).unwrap_or(0), u16::try_from(date).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_ms_dos_writes_them() {
        let parts = |(time, date): (u16, u16)| {
            let day = ((date >> 9) + 1980, date >> 5 & 15, date & 31);
            (day, (time >> 11, time >> 5 & 63, (time & 31) * 2))
        };
        let cases = [
            (0, ((1980, 1, 1), (0, 0, 0))),
            (951_782_399, ((2000, 2, 28), (23, 59, 58))),
            (951_868_799, ((2000, 2, 29), (23, 59, 58))),
            (1_700_000_000, ((2023, 11, 14), (22, 13, 20))),
            (u64::MAX, ((2107, 12, 31), (23, 59, 58))),
        ];
        for (seconds, expected) in cases {
            assert_eq!(parts(dos_time(seconds)), expected, "{seconds}");
        }
    }

    #[test]
    fn an_archive_is_laid_out_as_its_specification_says() {
        let mut zip = Zip::new(Vec::new(), 0);
        zip.member("a", &b"aaaa"[..], true).unwrap();
        zip.member("b", &b""[..], false).unwrap();
        let bytes = zip.finish().unwrap();
        let at = |offset: usize| u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
        assert!(bytes.starts_with(b"PK\x03\x04\x14\0\0\x08\x08\0\0\0\x21\0"), "{bytes:x?}");
        // CRC-32 of `aaaa`.
        assert_eq!(at(14), 0xad98_e545);
        let end = bytes.len() - 22;
        assert_eq!(&bytes[end..end + 4], b"PK\x05\x06");
        let directory = at(end + 16) as usize;
        assert_eq!(&bytes[directory..directory + 4], b"PK\x01\x02");
        assert_eq!((at(end + 12) as usize, at(directory + 38) >> 16), (end - directory, 0o100_755));
        // The first record is 46 bytes long, plus one for the name.
        assert_eq!(at(directory + 47 + 38) >> 16, 0o100_644);
    }
}
