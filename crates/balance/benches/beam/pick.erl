%% Cost of a pick on the BEAM with the set in ets, the cursor in atomics and their handles in persistent_term, as
%% in a published gRPC client. Prints "backends processes nanoseconds_per_pick", for each number of backends given: the
%% median over short slices, most of which are not interrupted, of the fastest process.
-module(pick).
-mode(compile).
-export([main/1]).

main(Args) ->
    W = erlang:system_info(schedulers_online),
    [bench(list_to_integer(A), P) || A <- Args, P <- [1, W, 32]].

bench(N, P) ->
    T = ets:new(lb, [set, public, {read_concurrency, true}]),
    A = atomics:new(1, [{signed, false}]),
    ets:insert(T, {channels, list_to_tuple([channel(I) || I <- lists:seq(1, N)])}),
    persistent_term:put({conn, lb, r}, {T, A}),
    S = max(20, 400 div N),
    run(P, 20, S),
    io:format("~p ~p ~.1f~n", [N, P, lists:min([run(P, 400 div P + 20, S) || _ <- [1, 2, 3]])]),
    ets:delete(T).

%% The fields of a channel of that client: a lookup copies all of them.
channel(I) ->
    #{host => <<"10.0.0.", (integer_to_binary(I))/binary>>, port => 50051, scheme => <<"http">>, cred => nil,
      adapter => gun, adapter_payload => #{conn_pid => self()}, codec => proto, interceptors => [], compressor => nil,
      accepted_compressors => [], headers => [], ref => I}.

pick() ->
    {T, A} = persistent_term:get({conn, lb, r}),
    [{channels, C}] = ets:lookup(T, channels),
    I = atomics:add_get(A, 1, 1),
    {ok, element((I - 1) rem tuple_size(C) + 1, C)}.

loop(0, X) -> X;
loop(K, X) -> {ok, C} = pick(), loop(K - 1, X bxor maps:get(ref, C)).

%% Each of N processes measures Slices slices of S picks.
run(P, Slices, S) ->
    Me = self(),
    [spawn_link(fun() -> Me ! {ns, median([slice(S) || _ <- lists:seq(1, Slices)])} end) || _ <- lists:seq(1, P)],
    lists:min([receive {ns, Ns} -> Ns end || _ <- lists:seq(1, P)]).

slice(S) ->
    Start = erlang:monotonic_time(nanosecond),
    X = loop(S, 0),
    Took = erlang:monotonic_time(nanosecond) - Start,
    true = is_integer(X),
    Took / S.

median(L) -> lists:nth(length(L) div 2 + 1, lists:sort(L)).
