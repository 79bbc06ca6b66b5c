//! Children on a single-threaded runtime; they need not be `Send`.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tidegate_supervise::{Compio, Scope};

const LONG: Duration = Duration::from_secs(3600);

#[test]
fn local_children_start_and_stop_on_their_thread() {
    let Ok(runtime) = compio_runtime::Runtime::new() else { panic!("compio has no driver for this machine") };
    runtime.block_on(async {
        let scope = Scope::root::<u64>("core-0").on(Compio);
        let cleaned = Rc::new(Cell::new(0));
        for id in 0..1000 {
            let cleaned = Rc::clone(&cleaned);
            scope
                .spawn_as(id, |ctx| async move {
                    ctx.cancelled().await;
                    compio_runtime::time::sleep(Duration::from_millis(1)).await;
                    cleaned.set(cleaned.get() + 1);
                })
                .unwrap();
        }
        let report = scope.stop(LONG, LONG).await;
        assert!(report.is_clean() && cleaned.get() == 1000, "{report}");
        let unresponsive = Scope::root::<u64>("unresponsive").on(Compio);
        unresponsive.spawn(|_| std::future::pending::<()>()).unwrap();
        let report = unresponsive.stop(Duration::from_millis(5), LONG).await;
        assert_eq!((report.aborted(), report.left), (1, 0), "{report}");
    });
}

#[test]
fn another_thread_may_stop_local_children() {
    let scope = Scope::root::<u64>("core-0");
    let core = {
        let scope = scope.clone();
        std::thread::spawn(move || {
            compio_runtime::Runtime::new().unwrap().block_on(async move {
                let (last, ended) = (scope.on(Compio), Rc::new(Cell::new(0)));
                for id in 0..1000 {
                    let ended = Rc::clone(&ended);
                    last.spawn_as(id, |ctx| async move {
                        ctx.cancelled().await;
                        ended.set(ended.get() + 1);
                    })
                    .unwrap();
                }
                std::future::poll_fn(|cx| scope.poll_empty(cx)).await;
                ended.get()
            })
        })
    };
    while scope.len() < 1000 {
        std::thread::yield_now();
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let report = runtime.block_on(scope.stop(|_| std::future::pending(), LONG, LONG));
    assert!(report.is_clean(), "{report}");
    assert_eq!(core.join().unwrap(), 1000);
}
