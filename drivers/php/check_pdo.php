<?php

// PHP's PDO: URL MODE. Each statement is prepared by the protocol, and given up by DEALLOCATE when its object goes.

[, $url, $mode] = $argv;
$table = 'pdo_' . getmypid();

class Skip extends Exception
{
}

function connect(array $more = []): PDO
{
    global $url;
    $parts = parse_url($url);
    $words = ['host' => $parts['host'], 'port' => $parts['port'], 'dbname' => ltrim($parts['path'], '/'), ...$more];
    $dsn = 'pgsql:' . http_build_query($words, '', ';');
    return new PDO($dsn, $parts['user'], $parts['pass'], [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
}

function equal($actual, $expected): void
{
    if ($actual !== $expected) {
        throw new Exception(substr(json_encode($actual), 0, 200) . ' instead of ' . substr(json_encode($expected), 0, 200));
    }
}

/** What the only column of the only row says, if there is one, of a statement that is prepared, executed and given up. */
function prepared(PDO $connection, string $sql, array $values = [])
{
    $statement = $connection->prepare($sql);
    $statement->execute($values);
    return $statement->columnCount() > 0 ? $statement->fetchColumn() : null;
}

function fails(callable $act, string $sqlstate): void
{
    try {
        $act();
    } catch (PDOException $error) {
        equal($error->getCode(), $sqlstate);
        return;
    }
    throw new Exception("no $sqlstate");
}

$checks = [
    'connect' => function () {
        for ($turn = 0; $turn < 5; $turn++) {
            equal(connect()->query('SELECT 1')->fetchColumn(), 1);
        }
    },

    'simple' => function () {
        $connection = connect();
        equal($connection->exec('SELECT 1; SELECT 2'), 0);
        equal($connection->query('SELECT 3')->fetchColumn(), 3);
    },

    'prepared' => function () {
        $connections = array_map(fn () => connect(), range(1, 8));
        for ($turn = 0; $turn < 20; $turn++) {
            foreach ($connections as $number => $connection) {
                equal(prepared($connection, 'SELECT ?::int + 1', [$turn]), $turn + 1);
                $connection->beginTransaction();
                equal(prepared($connection, "SELECT ?::text || 'x'", [$number]), "{$number}x");
                // Two of the same text: one is given up, and the other goes on.
                $kept = $connection->prepare('SELECT ?::int * 2');
                $kept->execute([$turn]);
                equal($kept->fetchColumn(), $turn * 2);
                equal(prepared($connection, 'SELECT ?::int * 2', [$number]), $number * 2);
                $kept->execute([$number]);
                equal($kept->fetchColumn(), $number * 2);
                $kept = null;
                $connection->commit();
            }
        }
    },

    'pipeline' => fn () => throw new Skip('the driver has none'),

    'copy' => function () use ($table) {
        $connection = connect();
        // The driver copies in several steps of its own.
        $connection->beginTransaction();
        $connection->exec("CREATE TABLE $table (n int, t text)");
        equal($connection->pgsqlCopyFromArray($table, array_map(fn ($n) => "$n\trow $n", range(0, 999))), true);
        $rows = $connection->pgsqlCopyToArray("(SELECT * FROM $table ORDER BY n)");
        equal([count($rows), $rows[999]], [1000, "999\trow 999\n"]);
        $connection->commit();
        fails(fn () => $connection->pgsqlCopyFromArray($table, ["not a number\tx"]), '22P02');
        $connection->exec("DROP TABLE $table");
    },

    'cancel' => fn () => throw new Skip('the driver has none'),

    'errors' => function () {
        $connection = connect();
        foreach (['SELECT * FROM no_such_table' => '42P01', 'SELECT 1/0' => '22012', 'SELEC' => '42601'] as $sql => $code) {
            fails(fn () => $connection->exec($sql), $code);
            fails(fn () => prepared($connection, $sql), $code);
            equal(prepared($connection, 'SELECT ?::int', [7]), 7);
        }
    },

    'transaction' => function () use ($table) {
        $connection = connect();
        $connection->exec("CREATE TABLE $table (n int)");
        $connection->beginTransaction();
        prepared($connection, "INSERT INTO $table VALUES (?)", [1]);
        $connection->rollBack();
        equal(prepared($connection, "SELECT count(*) FROM $table"), 0);
        $connection->beginTransaction();
        prepared($connection, "INSERT INTO $table VALUES (?)", [1]);
        $connection->exec('SAVEPOINT s');
        fails(fn () => prepared($connection, 'SELECT 1/?::int', [0]), '22012');
        $connection->exec('ROLLBACK TO s');
        $cursor = $connection->prepare('SELECT generate_series(1, 500)', [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
        $cursor->execute();
        $sum = 0;
        while ($row = $cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_NEXT)) {
            $sum += $row[0];
        }
        equal($sum, 125250);
        $cursor = null;
        $connection->commit();
        equal(prepared($connection, "SELECT count(*) FROM $table"), 1);
        $connection->exec("DROP TABLE $table");
    },

    'tls' => function () {
        equal(connect(['sslmode' => 'require', 'channel_binding' => 'require'])->query('SELECT 1')->fetchColumn(), 1);
    },

    'large' => function () {
        $connection = connect();
        equal(strlen(prepared($connection, "SELECT repeat('x', 5000000)")), 5000000);
        equal(prepared($connection, 'SELECT length(?)', [str_repeat('y', 3000000)]), 3000000);
        equal(count($connection->query('SELECT n, md5(n::text) FROM generate_series(1, 20000) n')->fetchAll()), 20000);
    },

    'parameters' => function () {
        $connections = [];
        for ($number = 0; $number < 6; $number++) {
            $connection = $connections[] = connect(['application_name' => "at-login-$number"]);
            equal($connection->query('SHOW application_name')->fetchColumn(), "at-login-$number");
            $connection->exec("SET application_name = 'set-$number'");
            $connection->exec($number % 2 ? "SET TimeZone = 'Asia/Tokyo'" : "SET TimeZone = 'UTC'");
        }
        for ($turn = 0; $turn < 5; $turn++) {
            foreach ($connections as $number => $connection) {
                equal($connection->query('SHOW application_name')->fetchColumn(), "set-$number");
                equal($connection->query('SHOW TimeZone')->fetchColumn(), $number % 2 ? 'Asia/Tokyo' : 'UTC');
                $connection->beginTransaction();
                $connection->exec('SET LOCAL search_path = pg_catalog');
                equal($connection->query('SHOW search_path')->fetchColumn(), 'pg_catalog');
                $connection->commit();
            }
        }
    },
];

foreach ($checks as $name => $check) {
    try {
        $check();
        echo "$name\tok\n";
    } catch (Throwable $error) {
        $verdict = $error instanceof Skip ? 'skip' : 'FAIL';
        echo "$name\t$verdict\t", trim(preg_replace('/\s+/', ' ', $error->getMessage())), "\n";
        fwrite(STDERR, "$error\n");
    }
}
