#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| dynamo_proofs::run("parser_chains", data));
