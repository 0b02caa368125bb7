//! Configuration of AMX's tile registers.

/// Number of tile registers.
const TILES: usize = 8;

/// Operand of `ldtilecfg` (Intel's manual, volume 1, chapter 18): palette 1, and the bytes per row and the number of
/// rows of each tile.
#[repr(C, align(64))]
pub struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileConfig {
    /// Returns the configuration for tiles with the given numbers of rows and bytes per row.
    pub fn new(tiles: [(u8, u16); TILES]) -> Self {
        let mut config =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (tile, (rows, row_bytes)) in tiles.into_iter().enumerate() {
            config.rows[tile] = rows;
            config.row_bytes[tile] = row_bytes;
        }
        config
    }
}
