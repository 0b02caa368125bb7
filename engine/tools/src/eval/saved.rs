//! Log-probabilities in a temporary file, two bytes each.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, Write};
use std::path::PathBuf;

use build_info::Bytes;
use llama::error::{Error, Result};

/// File of rows that are written once, and then read in the same order any number of times.
pub struct Saved {
    file: BufWriter<File>,
    reader: Option<BufReader<File>>,
    vocabulary: usize,
    folder: PathBuf,
    /// Size of the complete file in bytes.
    needed: Bytes,
}

impl Saved {
    /// Creates an empty file in the folder for temporary files. The file has no name, so the system always deletes
    /// it.
    ///
    /// # Errors
    /// [`Error::Temporary`] if the file cannot be created.
    pub fn new(vocabulary: usize, needed: Bytes) -> Result<Self> {
        let folder = std::env::temp_dir();
        let file = base::unnamed().map_err(|source| failed(&folder, needed, source))?;
        Ok(Self { file: BufWriter::new(file), reader: None, vocabulary, folder, needed })
    }

    /// Appends a row.
    ///
    /// # Errors
    /// [`Error::Temporary`] if the file cannot be written.
    pub fn push(&mut self, row: &[f64]) -> Result<()> {
        let bytes: Vec<u8> = row.iter().flat_map(|p| kld::compact(*p).to_le_bytes()).collect();
        self.file.write_all(&bytes).map_err(|source| failed(&self.folder, self.needed, source))
    }

    /// Returns to the first row.
    ///
    /// # Errors
    /// [`Error::Temporary`] if the file cannot be written or read.
    pub fn rewind(&mut self) -> Result<()> {
        let rewound =
            self.file.flush().and_then(|()| self.file.get_ref().try_clone()).and_then(|mut file| {
                file.rewind()?;
                Ok(BufReader::with_capacity(1 << 20, file))
            });
        self.reader = Some(rewound.map_err(|source| failed(&self.folder, self.needed, source))?);
        Ok(())
    }

    /// Reads the next row.
    ///
    /// # Errors
    /// [`Error::Temporary`] if the file cannot be read.
    pub fn next(&mut self) -> Result<Vec<f64>> {
        let mut bytes = vec![0; 2 * self.vocabulary];
        let read = match &mut self.reader {
            Some(reader) => reader.read_exact(&mut bytes),
            None => Err(io::Error::other("it was not rewound")),
        };
        read.map_err(|source| failed(&self.folder, self.needed, source))?;
        let cells: Vec<u16> =
            bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect();
        Ok(kld::expand(&cells))
    }
}

fn failed(folder: &std::path::Path, needed: Bytes, source: io::Error) -> Error {
    Error::Temporary { folder: folder.to_path_buf(), needed, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_often_as_wanted() {
        let mut saved = Saved::new(3, Bytes(12)).expect("a temporary file");
        let rows = [kld::log_softmax(&[1.0, 2.0, 3.0]), kld::log_softmax(&[0.0, 0.0, -9.0])];
        rows.iter().for_each(|row| saved.push(row).expect("room for it"));
        for _ in 0..2 {
            saved.rewind().expect("a file");
            for row in &rows {
                let read = saved.next().expect("a row");
                assert!(row.iter().zip(&read).all(|(a, b)| (a - b).abs() < 1e-3), "{row:?} {read:?}");
            }
            assert!(saved.next().is_err(), "a row too many");
        }
    }
}
