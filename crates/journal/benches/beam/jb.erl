%% Erlang's disk_log in its four modes: N records of Size bytes from P processes.
%% blog and log wait for an answer per record, balog and alog do not. One line per run:
%% mode items producers_us drained_us durable_us queue_max_records
-module(jb).
-export([main/1]).

main([N, P, Size]) ->
    [run(Mode, N, P, Size) || Mode <- [blog, balog, log, alog]],
    halt().

run(Mode, N, P, Size) ->
    Format = case lists:member(Mode, [blog, balog]) of true -> external; false -> internal end,
    file:delete("jb.log"),
    {ok, _} = disk_log:open([{name, l}, {file, "jb.log"}, {format, Format}, {type, halt}, {size, infinity}]),
    Log = disk_log_server:get_log_pid(l),
    Record = binary:copy(<<"x">>, Size),
    Self = self(),
    Sampler = spawn_link(fun() -> sample(Log, 0) end),
    Each = N div P,
    Producers = [spawn_link(fun() -> receive go -> ok end, append(Mode, Record, Each), Self ! done end)
                 || _ <- lists:seq(1, P)],
    Begun = erlang:monotonic_time(microsecond),
    [Producer ! go || Producer <- Producers],
    [receive done -> ok end || _ <- Producers],
    Produced = erlang:monotonic_time(microsecond),
    %% Answered behind everything that is queued.
    Info = disk_log:info(l),
    Drained = erlang:monotonic_time(microsecond),
    ok = disk_log:sync(l),
    Durable = erlang:monotonic_time(microsecond),
    Sampler ! {get, Self},
    Queue = receive {queue, Most} -> Most end,
    Items = proplists:get_value(items, Info, proplists:get_value(no_current_items, Info)),
    disk_log:close(l),
    file:delete("jb.log"),
    io:format("~p ~p ~p ~p ~p ~p~n", [Mode, Items, Produced - Begun, Drained - Begun, Durable - Begun, Queue]).

append(_, _, 0) -> ok;
append(Mode, Record, Left) -> ok = disk_log:Mode(l, Record), append(Mode, Record, Left - 1).

sample(Log, Most) ->
    receive
        {get, From} -> From ! {queue, Most}
    after 1 ->
        {_, Length} = process_info(Log, message_queue_len),
        sample(Log, max(Most, Length))
    end.
