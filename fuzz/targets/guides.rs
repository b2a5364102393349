#![no_main]
// The compiler catches its library's panics and says so to the client; only what escapes it is a finding.
libfuzzer_sys::fuzz_target!(
    init: std::panic::set_hook(Box::new(|_| {})),
    |data: &[u8]| dynamo_proofs::run("guides", data)
);
