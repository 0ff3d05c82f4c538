//! The adoption test appends these tests to the tests of `mini-redis`.

use mini_redis::{client, server};
use std::time::Duration;
use tokio::net::TcpListener;
use uslab::Subsystem;

/// Returns the number of objects in use in all caches whose names begin with `name`.
fn used(name: &str) -> u64 {
    let caches = Subsystem::global().unwrap().info().caches;
    caches.iter().filter(|cache| cache.name.starts_with(name)).map(|cache| cache.used).sum()
}

#[tokio::test]
async fn adopted_crate_allocates_its_nodes_from_caches() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(server::run(listener, tokio::time::sleep(Duration::from_secs(3600))));
    let mut client = client::connect(address).await.unwrap();
    for key in 0..1000 {
        client.set(&format!("key {key}"), vec![key as u8; 100].into()).await.unwrap();
    }
    println!("\nOBJECTS mini-redis | {} values, {} buffers", used("malloc-"), used("buffer"));
    assert_eq!(used("malloc-"), 1000);
    // The buffers of the client and of the server.
    assert_eq!(used("buffer"), 2);
    assert_eq!(client.get("key 7").await.unwrap().unwrap(), vec![7; 100]);
    client.set("key 7", b"short"[..].into()).await.unwrap();
    assert_eq!(used("malloc-"), 1000, "the old value must be freed");
    drop(client);
    serving.abort();
    // The server's tasks exit after the server.
    for _ in 0..10_000 {
        if (used("malloc-"), used("buffer")) == (0, 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("{} values and {} buffers remain in use", used("malloc-"), used("buffer"));
}
