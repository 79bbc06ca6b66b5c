// pgjdbc: URL MODE.

import java.io.StringReader;
import java.io.StringWriter;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;

public class Check {
    interface Work { void run() throws Exception; }

    static String url;
    static final String TABLE = "pgjdbc_" + ProcessHandle.current().pid();

    public static void main(String[] arguments) throws Exception {
        URI uri = new URI(arguments[0]);
        String[] login = uri.getUserInfo().split(":");
        url = "jdbc:postgresql://" + uri.getHost() + ":" + uri.getPort() + uri.getPath()
            + "?user=" + login[0] + "&password=" + login[1];
        check("connect", Check::connects);
        check("simple", Check::simple);
        check("prepared", Check::prepared);
        check("pipeline", Check::batch);
        check("copy", Check::copy);
        check("cancel", Check::cancel);
        check("errors", Check::errors);
        check("transaction", Check::transaction);
        check("tls", Check::tls);
        check("large", Check::large);
        check("parameters", Check::parameters);
        System.exit(0);
    }

    static void check(String name, Work work) {
        try {
            work.run();
            System.out.println(name + "\tok");
        } catch (Exception | AssertionError error) {
            error.printStackTrace();
            System.out.println(name + "\tFAIL\t" + String.valueOf(error.getMessage()).replaceAll("\\s+", " "));
        }
    }

    static Connection open(String... more) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("loginTimeout", "20");
        properties.setProperty("sslmode", "disable");
        for (int i = 0; i < more.length; i += 2) properties.setProperty(more[i], more[i + 1]);
        return DriverManager.getConnection(url, properties);
    }

    static String value(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement(); ResultSet rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getString(1);
        }
    }

    static void run(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    static void equal(Object actual, Object expected) {
        if (!expected.equals(actual)) throw new AssertionError(actual + " instead of " + expected);
    }

    static void fails(String sqlstate, Callable<?> work) throws Exception {
        try {
            work.call();
        } catch (SQLException error) {
            equal(error.getSQLState(), sqlstate);
            return;
        }
        throw new AssertionError("no error where " + sqlstate + " was due");
    }

    static void connects() throws Exception {
        for (int i = 0; i < 5; i++) {
            try (Connection connection = open()) {
                equal(value(connection, "SELECT 1"), "1");
            }
        }
    }

    static void simple() throws Exception {
        try (Connection connection = open("preferQueryMode", "simple")) {
            try (Statement statement = connection.createStatement()) {
                statement.execute("SELECT 1; SELECT 2");
                equal(statement.getMoreResults(), true);
                try (ResultSet rows = statement.getResultSet()) {
                    rows.next();
                    equal(rows.getInt(1), 2);
                }
            }
            equal(value(connection, "SELECT 3"), "3");
        }
    }

    static void prepared() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<?>> all = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            String own = "-" + number;
            all.add(threads.submit(() -> {
                preparedSession(own);
                return null;
            }));
        }
        for (Future<?> one : all) one.get();
        threads.shutdown();
    }

    static void preparedSession(String own) throws SQLException {
        // Named on the server from the first use on; S_1, S_2 in every session.
        try (Connection connection = open("prepareThreshold", "1", "preparedStatementCacheQueries", "5")) {
            connection.setAutoCommit(false);
            for (int turn = 0; turn < 50; turn++) {
                try (PreparedStatement text = connection.prepareStatement("SELECT ?::text || '" + own + "'");
                     PreparedStatement plus = connection.prepareStatement("SELECT ?::int + " + turn % 10)) {
                    text.setString(1, "x");
                    try (ResultSet rows = text.executeQuery()) {
                        rows.next();
                        equal(rows.getString(1), "x" + own);
                    }
                    plus.setInt(1, turn);
                    try (ResultSet rows = plus.executeQuery()) {
                        rows.next();
                        equal(rows.getInt(1), turn + turn % 10);
                    }
                }
                connection.commit();
            }
        }
    }

    static void batch() throws Exception {
        try (Connection connection = open("prepareThreshold", "1")) {
            run(connection, "CREATE TABLE " + TABLE + " (n int)");
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO " + TABLE + " VALUES (?)")) {
                for (int number = 0; number < 1000; number++) {
                    insert.setInt(1, number);
                    insert.addBatch();
                }
                equal(insert.executeBatch().length, 1000);
            }
            equal(value(connection, "SELECT sum(n) FROM " + TABLE), "499500");
            try (PreparedStatement insert = connection.prepareStatement("INSERT INTO " + TABLE + " VALUES (1/?)")) {
                for (int number : new int[] {1, 0, 1}) {
                    insert.setInt(1, number);
                    insert.addBatch();
                }
                fails("22012", insert::executeBatch);
            }
            equal(value(connection, "SELECT count(*) FROM " + TABLE), "1000");
            run(connection, "DROP TABLE " + TABLE);
        }
    }

    static void copy() throws Exception {
        try (Connection connection = open()) {
            run(connection, "CREATE TABLE " + TABLE + " (n int, t text)");
            StringBuilder lines = new StringBuilder();
            for (int number = 0; number < 1000; number++) lines.append(number).append("\trow ").append(number).append('\n');
            CopyManager copies = connection.unwrap(PGConnection.class).getCopyAPI();
            equal(copies.copyIn("COPY " + TABLE + " FROM STDIN", new StringReader(lines.toString())), 1000L);
            StringWriter out = new StringWriter();
            copies.copyOut("COPY (SELECT * FROM " + TABLE + " ORDER BY n) TO STDOUT", out);
            equal(out.toString(), lines.toString());
            run(connection, "DROP TABLE " + TABLE);
        }
    }

    static void cancel() throws Exception {
        try (Connection connection = open(); Statement statement = connection.createStatement()) {
            Thread canceller = new Thread(() -> {
                try {
                    Thread.sleep(300);
                    statement.cancel();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            canceller.start();
            fails("57014", () -> statement.executeQuery("SELECT pg_sleep(30)"));
            canceller.join();
            equal(value(connection, "SELECT 1"), "1");
        }
    }

    static void errors() throws Exception {
        try (Connection connection = open()) {
            fails("42P01", () -> value(connection, "SELECT * FROM no_such_table"));
            equal(value(connection, "SELECT 7"), "7");
            fails("22012", () -> value(connection, "SELECT 1/0"));
            equal(value(connection, "SELECT 8"), "8");
        }
    }

    static void transaction() throws Exception {
        try (Connection connection = open()) {
            run(connection, "CREATE TABLE " + TABLE + " (n int)");
            connection.setAutoCommit(false);
            run(connection, "INSERT INTO " + TABLE + " VALUES (1)");
            connection.rollback();
            equal(value(connection, "SELECT count(*) FROM " + TABLE), "0");
            run(connection, "INSERT INTO " + TABLE + " VALUES (1)");
            var before = connection.setSavepoint();
            fails("22012", () -> value(connection, "SELECT 1/0"));
            connection.rollback(before);
            try (Statement statement = connection.createStatement()) {
                // A portal that is read in parts.
                statement.setFetchSize(100);
                int rows = 0;
                try (ResultSet some = statement.executeQuery("SELECT generate_series(1, 500)")) {
                    while (some.next()) rows++;
                }
                equal(rows, 500);
            }
            connection.commit();
            equal(value(connection, "SELECT count(*) FROM " + TABLE), "1");
            run(connection, "DROP TABLE " + TABLE);
            connection.commit();
        }
    }

    static void tls() throws Exception {
        try (Connection connection = open("sslmode", "require")) {
            equal(value(connection, "SELECT 1"), "1");
        }
    }

    static void large() throws Exception {
        try (Connection connection = open()) {
            equal(value(connection, "SELECT repeat('x', 5000000)").length(), 5_000_000);
            try (PreparedStatement length = connection.prepareStatement("SELECT length(?)")) {
                length.setString(1, "y".repeat(3_000_000));
                try (ResultSet rows = length.executeQuery()) {
                    rows.next();
                    equal(rows.getInt(1), 3_000_000);
                }
            }
            int rows = 0;
            try (Statement statement = connection.createStatement();
                 ResultSet all = statement.executeQuery("SELECT n, md5(n::text) FROM generate_series(1, 20000) n")) {
                while (all.next()) rows++;
            }
            equal(rows, 20_000);
        }
    }

    static void parameters() throws Exception {
        List<Connection> connections = new ArrayList<>();
        for (int number = 0; number < 6; number++) {
            Connection connection = open("ApplicationName", "at-login-" + number);
            connections.add(connection);
            equal(value(connection, "SHOW application_name"), "at-login-" + number);
            run(connection, "SET application_name = 'set-" + number + "'");
        }
        for (int turn = 0; turn < 5; turn++) {
            for (int number = 0; number < 6; number++) {
                Connection connection = connections.get(number);
                equal(value(connection, "SHOW application_name"), "set-" + number);
                connection.setAutoCommit(false);
                run(connection, "SET LOCAL search_path = pg_catalog");
                equal(value(connection, "SHOW search_path"), "pg_catalog");
                connection.commit();
                connection.setAutoCommit(true);
            }
        }
        for (Connection connection : connections) connection.close();
    }
}
