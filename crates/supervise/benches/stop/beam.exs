# Starts and stops N children with a cleanup under two supervisor designs; prints "variant n start_ms stop_ms".
defmodule Child do
  use GenServer, restart: :temporary, shutdown: 5_000
  def start_link(counter), do: GenServer.start_link(__MODULE__, counter)

  def init(counter) do
    Process.flag(:trap_exit, true)
    {:ok, counter}
  end

  def terminate(_, counter), do: :counters.add(counter, 1, 1)
end

# Lower bound for a supervisor: unlink all children, signal all, then wait for all.
defmodule TwoPass do
  use GenServer
  def start_link(_), do: GenServer.start_link(__MODULE__, [])

  def init(_) do
    Process.flag(:trap_exit, true)
    {:ok, []}
  end

  def handle_call({:start, counter}, _, children) do
    {:ok, child} = Child.start_link(counter)
    {:reply, {:ok, child}, [child | children]}
  end

  def terminate(_, children) do
    for child <- children do
      Process.monitor(child)
      Process.unlink(child)
    end

    for child <- children, do: Process.exit(child, :shutdown)
    for _ <- children, do: receive(do: ({:DOWN, _, _, _, _} -> :ok))
  end
end

defmodule Bench do
  def run(kind, n) do
    counter = :counters.new(1, [:write_concurrency])
    {top, parts, start} = tree(kind, n)
    count = length(parts)
    began = now()

    parts
    |> Enum.with_index()
    |> Enum.map(fn {part, i} ->
      share = div(n, count) + if(i < rem(n, count), do: 1, else: 0)
      Task.async(fn -> for _ <- 1..share//1, do: {:ok, _} = start.(part, counter) end)
    end)
    |> Task.await_many(:infinity)

    started = now()
    Process.unlink(top)
    GenServer.stop(top, :shutdown, :infinity)
    stopped = now()
    ^n = :counters.get(counter, 1)
    IO.puts("#{kind} #{n} #{started - began} #{stopped - started}")
    :erlang.garbage_collect()
  end

  defp tree(:two_pass, _) do
    {:ok, top} = TwoPass.start_link([])
    {top, [top], &GenServer.call(&1, {:start, &2}, :infinity)}
  end

  # The published rule: one partition per 4,000 children.
  defp tree(:two_tier, n) do
    {:ok, top} = DynamicSupervisor.start_link(strategy: :one_for_one)
    parts = max(System.schedulers_online(), div(n + 3999, 4000))

    pids =
      for _ <- 1..parts do
        {:ok, pid} = DynamicSupervisor.start_child(top, {DynamicSupervisor, strategy: :one_for_one})
        pid
      end

    {top, pids, &DynamicSupervisor.start_child(&1, {Child, &2})}
  end

  defp now, do: System.monotonic_time(:microsecond) / 1000
end

for arg <- System.argv() do
  n = String.to_integer(arg)
  # Larger sizes take minutes, and this variant is never the fastest.
  if n <= 500_000, do: Bench.run(:two_tier, n)
  Bench.run(:two_pass, n)
end
