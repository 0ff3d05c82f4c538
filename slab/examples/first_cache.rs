//! A first cache: an object is constructed once and used many times.

use uslab::ObjectCache;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let buffers =
        ObjectCache::builder("buffer").ctor(|| Vec::<u8>::with_capacity(4096)).reset(Vec::clear).build()?;
    for request in 0..1000_u32 {
        let mut buffer = buffers.alloc()?;
        buffer.extend_from_slice(&request.to_le_bytes());
    }
    let info = buffers.info();
    println!("{} allocations, served by {} constructed buffers", info.allocs, info.constructed);
    print!("{}", uslab::slabinfo()?);
    Ok(())
}
