package tidegate;

import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import io.debezium.engine.format.Json;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Counts the changes of a slot with Debezium's embedded engine, until a number is reached.
 *
 * <p>Arguments: host port database user slot publication changes format(connect|json|latency) tuning(default|tuned). Prints one
 * line "ready" when the engine starts, and one line "counted N" at the end. The format "latency" is that of Connect; it prints
 * the percentiles 50 and 99 of the time between commit and receipt in milliseconds, without the first 1,000 changes, as a line
 * "latency P50 P99" before the last one.
 */
public final class CountChanges {
    private CountChanges() {}

    public static void main(String[] arguments) throws Exception {
        Properties properties = properties(arguments);
        long expected = Long.parseLong(arguments[6]);
        CountDownLatch done = new CountDownLatch(1);
        AtomicLong counted = new AtomicLong();
        long[] micros = arguments[7].equals("latency") ? new long[(int) expected] : null;
        DebeziumEngine<?> engine = arguments[7].equals("json")
            ? json(properties, counted, expected, done)
            : connect(properties, counted, expected, done, micros);
        Thread thread = new Thread((Runnable) engine, "engine");
        System.out.println("ready");
        thread.start();
        done.await();
        if (micros != null) {
            printLatency(micros);
        }
        System.out.println("counted " + counted.get());
        System.out.flush();
        engine.close();
        thread.join();
    }

    private static void printLatency(long[] micros) {
        long[] counted = Arrays.copyOfRange(micros, Math.min(1000, micros.length / 2), micros.length);
        Arrays.sort(counted);
        double p50 = counted[counted.length / 2] / 1e3;
        double p99 = counted[(int) Math.min(counted.length - 1, (long) (counted.length * 0.99))] / 1e3;
        System.out.println("latency " + p50 + " " + p99);
    }

    /** Microseconds from the commit to now. */
    private static long age(SourceRecord record) {
        Instant now = Instant.now();
        long nowMicros = now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
        return nowMicros - ((Struct) record.value()).getStruct("source").getInt64("ts_us");
    }

    private static DebeziumEngine<?> connect(Properties properties, AtomicLong counted, long expected, CountDownLatch done,
            long[] micros) {
        return DebeziumEngine.create(ChangeEventFormat.of(Connect.class))
            .using(properties)
            .notifying((List<RecordChangeEvent<SourceRecord>> records,
                    DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer) -> {
                int at = (int) counted.get();
                for (RecordChangeEvent<SourceRecord> record : records) {
                    if (micros != null && at < micros.length) {
                        micros[at++] = age(record.record());
                    }
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
                count(records.size(), counted, expected, done);
            })
            .build();
    }

    private static DebeziumEngine<?> json(Properties properties, AtomicLong counted, long expected, CountDownLatch done) {
        return DebeziumEngine.create(Json.class)
            .using(properties)
            .notifying((records, committer) -> {
                for (var record : records) {
                    committer.markProcessed(record);
                }
                committer.markBatchFinished();
                count(records.size(), counted, expected, done);
            })
            .build();
    }

    private static void count(int records, AtomicLong counted, long expected, CountDownLatch done) {
        if (counted.addAndGet(records) >= expected) {
            done.countDown();
        }
    }

    private static Properties properties(String[] arguments) {
        Properties properties = new Properties();
        properties.setProperty("name", "bench");
        properties.setProperty("connector.class", "io.debezium.connector.postgresql.PostgresConnector");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        properties.setProperty("offset.flush.interval.ms", "10000");
        properties.setProperty("topic.prefix", "bench");
        properties.setProperty("database.hostname", arguments[0]);
        properties.setProperty("database.port", arguments[1]);
        properties.setProperty("database.dbname", arguments[2]);
        properties.setProperty("database.user", arguments[3]);
        properties.setProperty("database.password", "");
        properties.setProperty("slot.name", arguments[4]);
        properties.setProperty("publication.name", arguments[5]);
        properties.setProperty("plugin.name", "pgoutput");
        properties.setProperty("snapshot.mode", "no_data");
        properties.setProperty("publication.autocreate.mode", "disabled");
        properties.setProperty("tombstones.on.delete", "false");
        if (arguments[8].equals("tuned")) {
            properties.setProperty("max.batch.size", "20480");
            properties.setProperty("max.queue.size", "81920");
            properties.setProperty("poll.interval.ms", "10");
            properties.setProperty("provide.transaction.metadata", "false");
        }
        return properties;
    }
}
