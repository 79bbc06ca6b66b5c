//! FunctionCall, EmptyQueryResponse and PortalSuspended.

use tidegate_testkit::{Frames, on_each_postgres};

on_each_postgres! {
    /// EDGE-72.
    fn function_call_returns_a_value_or_an_error(fixture) {
        // int4pl(3, 4), arguments and result in binary.
        let mut call = 177_u32.to_be_bytes().to_vec();
        call.extend([0, 1, 0, 1, 0, 2, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 4, 0, 1]);
        let unknown = [&1_u32.to_be_bytes()[..], &[0, 0, 0, 0, 0, 0]].concat();
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            for _ in 0..2 {
                client.send(&Frames::new().message(b'F', &call));
                let answer = client.expect("V Z:I");
                assert_eq!(answer[0].body, [0, 0, 0, 4, 0, 0, 0, 7]);
            }
            client.send(&Frames::new().message(b'F', &unknown));
            client.expect("E Z:I");
            client.ok("begin");
            client.send(&Frames::new().message(b'F', &call));
            client.expect("V Z:T");
            client.ok("rollback");
        });
    }

    /// EDGE-72.
    fn empty_query_response(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            for empty in ["", " ", ";", "-- nothing"] {
                client.send(&Frames::new().query(empty));
                client.expect("I Z:I");
                client.send(&Frames::new().parse("", empty).bind("", &[]).describe_portal("").execute().sync());
                client.expect("1 2 n I Z:I");
            }
        });
    }

    /// EDGE-72.
    fn suspended_portal_ends_with_sync(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            let portal = Frames::new().parse("", "select generate_series(1, 5)").bind_portal("p", "", &[]);
            client.send(&portal.execute_portal("p", 2).flush());
            client.expect("1 2 D:1 D:2 s");
            client.send(&Frames::new().execute_portal("p", 2).flush());
            client.expect("D:3 D:4 s");
            client.send(&Frames::new().execute_portal("p", 2).execute_portal("p", 2).sync());
            client.expect("D:5 C:SELECT_1 C:SELECT_0 Z:I");
            client.send(&Frames::new().execute_portal("p", 2).sync());
            client.expect("E:34000 Z:I");
        });
    }

    /// EDGE-72.
    fn suspended_portal_in_a_transaction_survives_sync(fixture) {
        fixture.on_both_targets(|target| {
            let mut client = target.client();
            client.ok("begin");
            let portal = Frames::new().parse("", "select generate_series(1, 4)").bind_portal("p", "", &[]);
            client.send(&portal.execute_portal("p", 2).sync());
            client.expect("1 2 D:1 D:2 s Z:T");
            client.send(&Frames::new().execute_portal("p", 0).close_portal("p").sync());
            client.expect("D:3 D:4 C:SELECT_2 3 Z:T");
            client.ok("commit");
        });
    }
}
