//! Tests of the upper bounds on the speed.

use build_info::roofline::Rates;

use super::{answer, host, roofline, shape};
use crate::recommend::model_facts::Macs;
use crate::recommend::speed::{decode_ceiling, prefill_ceiling};

#[test]
fn speeds_are_ceilings_from_what_was_measured() {
    assert_eq!(decode_ceiling(40e9, 4_000_000_000, 1_000_000_000), Some(8.0));
    let rates = Rates {
        threads: 2,
        read_bytes: 1.0,
        int8_macs: 1e12,
        int8_wide_macs: None,
        f32_macs: 1e11,
        bf16_macs: Some(2e11),
    };
    let macs = |quantised, half, single| Macs { quantised, half, single };
    let cases = [
        (macs(6_000_000_000, 0, 1_000_000_000), Some(1.0 / 0.016)),
        (macs(0, 2_000_000_000, 0), Some(100.0)),
        (macs(0, 0, 0), None),
    ];
    for (macs, expected) in cases {
        assert_eq!(prefill_ceiling(&rates, macs), expected, "{macs:?}");
    }
    for nonsense in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        assert_eq!(decode_ceiling(nonsense, 1, 0), None);
    }

    let (model, host) = (shape("llama-3.1-8b", "Q8_0"), host("i3-6100"));
    let measured = roofline(&host.cpu.name);
    let speed = answer(&model, &host, Some(&measured), None).speed;
    let bytes = model.bytes_per_token.0 as f64;
    let kv = model.kv.f16.0 as f64 * 2048.0;
    assert_eq!((speed.decode, speed.decode_full), (Some(20e9 / bytes), Some(20e9 / (bytes + kv))));
    let per_token = model.prefill_macs.quantised as f64 / 200e9;
    assert_eq!(speed.prefill, Some(1.0 / per_token));
    let without = answer(&model, &host, None, None).speed;
    assert!(without.decode.is_none() && without.how.contains("anneal bench --roofline"));
    // If weights are read from the disk, memory bandwidth does not limit the speed.
    let large = answer(&shape("llama-3.3-70b", "Q4_K_M"), &host, Some(&measured), None);
    assert!(large.speed.decode.is_none() && large.speed.how.contains("disk"), "{:?}", large.speed);
    assert!(large.quantisation.choices.iter().all(|choice| choice.decode.is_none()));
    let mut wrong = measured;
    wrong.rates.iter_mut().for_each(|rates| rates.read_bytes = -1.0);
    let speed = answer(&model, &host, Some(&wrong), None).speed;
    assert!(speed.decode.is_none() && speed.how.contains("invalid"), "{speed:?}");
}
