//! Search for the number of layers that fit, independent of the kind of memory.

use crate::offload::CpuMoe;

/// Returns the number of layers that go to devices (up to `n_layer` and the output), and the number of layers
/// whose experts stay on the host. Returns `None` if even the buffers that devices need to help the host do not
/// fit.
///
/// `excess` returns the number of bytes by which a distribution exceeds the memory. Its arguments are the number of
/// layers on devices and the number of layers with experts on the host. The search prefers all layers on devices,
/// because for every token, the device waits for the CPU at each layer on the host. In a mixture-of-experts model, the
/// experts are the first to stay on the host, because they contain most of the bytes, but a token reads few of them.
pub fn choose<E>(
    n_layer: u32,
    is_mixture: bool,
    asked: CpuMoe,
    excess: &mut impl FnMut(u32, u32) -> Result<i64, E>,
) -> Result<Option<(u32, u32)>, E> {
    let all = n_layer + 1;
    let free = is_mixture && asked == CpuMoe::Auto;
    let mut n_cpu_moe = asked.of(n_layer);
    let mut too_much = excess(all, n_cpu_moe)?;
    if too_much <= 0 {
        return Ok(Some((all, n_cpu_moe)));
    }
    if free {
        let without = excess(all, n_layer)?;
        if without <= 0 {
            let ends = ((n_layer, without), (0, too_much));
            return Ok(Some((all, border(ends, &mut |n_cpu_moe| excess(all, n_cpu_moe))?)));
        }
        (n_cpu_moe, too_much) = (n_layer, without);
    }
    let none = excess(0, n_cpu_moe)?;
    if none > 0 {
        return Ok(None);
    }
    let ends = ((0, none), (all, too_much));
    Ok(Some((border(ends, &mut |layers| excess(layers, n_cpu_moe))?, n_cpu_moe)))
}

/// Searches between a number that fits and a number that does not fit, both given in `ends` with their excess. Returns
/// the last number that still fits. Memory is nearly proportional to the number, so the next number to try is where a
/// straight line crosses zero. This takes two or three tries; bisection takes six.
fn border<E>(
    ends: ((u32, i64), (u32, i64)),
    excess: &mut impl FnMut(u32) -> Result<i64, E>,
) -> Result<u32, E> {
    let ((mut fits, mut room), (mut fails, mut lack)) = ends;
    // After three tries, bisection ends the search even if the line always errs on the same side.
    let mut looks = 0;
    while fits.abs_diff(fails) > 1 {
        let between = fits.abs_diff(fails);
        let part = room.unsigned_abs() as f64 / (room.unsigned_abs() as f64 + lack as f64);
        let step = if looks < 3 { (f64::from(between) * part) as u32 } else { between / 2 };
        let step = step.clamp(1, between - 1);
        let next = if fails > fits { fits + step } else { fits - step };
        let found = excess(next)?;
        match found <= 0 {
            true => (fits, room) = (next, found),
            false => (fails, lack) = (next, found),
        }
        looks += 1;
    }
    Ok(fits)
}
