// pgx: URL MODE.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	url   = os.Args[1]
	table = fmt.Sprintf("pgx_%d", os.Getpid())
)

type check struct {
	name string
	run  func(context.Context) error
}

func main() {
	checks := []check{
		{"connect", connects}, {"simple", simple}, {"prepared", prepared}, {"pipeline", batch}, {"copy", copies},
		{"cancel", cancel}, {"errors", fails}, {"transaction", transaction}, {"tls", tls}, {"large", large},
		{"parameters", parameters},
	}
	for _, check := range checks {
		ctx, done := context.WithTimeout(context.Background(), time.Minute)
		if err := check.run(ctx); err != nil {
			fmt.Printf("%s\tFAIL\t%s\n", check.name, strings.Join(strings.Fields(err.Error()), " "))
		} else {
			fmt.Printf("%s\tok\n", check.name)
		}
		done()
	}
}

func open(ctx context.Context, more string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, url+"?connect_timeout=20&"+more)
}

// with opens a connection for work and closes it.
func with(ctx context.Context, more string, work func(*pgx.Conn) error) error {
	conn, err := open(ctx, more)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return work(conn)
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// expect asks for one value and compares it.
func expect[T comparable](ctx context.Context, conn querier, expected T, sql string, args ...any) error {
	var actual T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&actual); err != nil {
		return fmt.Errorf("%s: %w", sql, err)
	}
	if actual != expected {
		return fmt.Errorf("%s: %v instead of %v", sql, actual, expected)
	}
	return nil
}

func failsWith(err error, sqlstate string) error {
	var failure *pgconn.PgError
	if !errors.As(err, &failure) || failure.Code != sqlstate {
		return fmt.Errorf("%v instead of %s", err, sqlstate)
	}
	return nil
}

func connects(ctx context.Context) error {
	for range 5 {
		err := with(ctx, "sslmode=disable", func(conn *pgx.Conn) error { return expect(ctx, conn, 1, "SELECT 1") })
		if err != nil {
			return err
		}
	}
	return nil
}

func simple(ctx context.Context) error {
	return with(ctx, "sslmode=disable", func(conn *pgx.Conn) error {
		results, err := conn.PgConn().Exec(ctx, "SELECT 1; SELECT 2").ReadAll()
		if err != nil {
			return err
		}
		if len(results) != 2 || string(results[1].Rows[0][0]) != "2" {
			return fmt.Errorf("%d results", len(results))
		}
		return expect(ctx, conn, 3, "SELECT $1::int", pgx.QueryExecModeSimpleProtocol, 3)
	})
}

func prepared(ctx context.Context) error {
	var group sync.WaitGroup
	failures := make(chan error, 8)
	for number := range 8 {
		group.Go(func() {
			failures <- with(ctx, "sslmode=disable&statement_cache_capacity=5", func(conn *pgx.Conn) error {
				return useStatements(ctx, conn, number)
			})
		})
	}
	group.Wait()
	close(failures)
	var all error
	for err := range failures {
		all = errors.Join(all, err)
	}
	return all
}

// useStatements uses one name for another text in each session, and more texts than the driver caches.
func useStatements(ctx context.Context, conn *pgx.Conn, number int) error {
	if _, err := conn.Prepare(ctx, "own", fmt.Sprintf("SELECT $1::text || '-%d'", number)); err != nil {
		return err
	}
	for turn := range 50 {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if err := expect(ctx, tx, fmt.Sprintf("x-%d", number), "own", "x"); err != nil {
				return err
			}
			return expect(ctx, tx, turn+turn%10, fmt.Sprintf("SELECT $1::int + %d", turn%10), turn)
		})
		if err != nil {
			return err
		}
	}
	return conn.Deallocate(ctx, "own")
}

func batch(ctx context.Context) error {
	return with(ctx, "sslmode=disable", func(conn *pgx.Conn) error {
		batch := &pgx.Batch{}
		for number := range 100 {
			batch.Queue("SELECT $1::int", number)
		}
		results := conn.SendBatch(ctx, batch)
		for number := range 100 {
			if err := expect(ctx, rowOf{results}, number, "batch"); err != nil {
				return err
			}
		}
		if err := results.Close(); err != nil {
			return err
		}
		failing := &pgx.Batch{}
		for _, divisor := range []int{1, 0, 1} {
			failing.Queue("SELECT 1/$1::int", divisor)
		}
		if err := failsWith(conn.SendBatch(ctx, failing).Close(), "22012"); err != nil {
			return err
		}
		return expect(ctx, conn, 4, "SELECT 4")
	})
}

// rowOf reads the next result of a batch.
type rowOf struct{ results pgx.BatchResults }

func (row rowOf) QueryRow(context.Context, string, ...any) pgx.Row { return row.results.QueryRow() }

func copies(ctx context.Context) error {
	return with(ctx, "sslmode=disable", func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "CREATE TABLE "+table+" (n int, t text)"); err != nil {
			return err
		}
		source := pgx.CopyFromSlice(1000, func(number int) ([]any, error) {
			return []any{number, fmt.Sprintf("row %d", number)}, nil
		})
		if count, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"n", "t"}, source); count != 1000 || err != nil {
			return fmt.Errorf("%d rows: %w", count, err)
		}
		var out bytes.Buffer
		if _, err := conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT * FROM "+table+" ORDER BY n) TO STDOUT"); err != nil {
			return err
		}
		if !strings.HasSuffix(out.String(), "999\trow 999\n") {
			return errors.New("another copy comes out than went in")
		}
		_, err := conn.Exec(ctx, "DROP TABLE "+table)
		return err
	})
}

func cancel(ctx context.Context) error {
	return with(ctx, "sslmode=disable", func(conn *pgx.Conn) error {
		asked := make(chan error, 1)
		time.AfterFunc(300*time.Millisecond, func() { asked <- conn.PgConn().CancelRequest(ctx) })
		_, err := conn.Exec(ctx, "SELECT pg_sleep(30)")
		if err := failsWith(err, "57014"); err != nil {
			return err
		}
		return errors.Join(<-asked, expect(ctx, conn, 1, "SELECT 1"))
	})
}

func fails(ctx context.Context) error {
	return with(ctx, "sslmode=disable", func(conn *pgx.Conn) error {
		for sql, sqlstate := range map[string]string{"SELECT * FROM no_such_table": "42P01", "SELECT 1/0": "22012"} {
			for _, mode := range []any{pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheStatement} {
				_, err := conn.Exec(ctx, sql, mode)
				if err := errors.Join(failsWith(err, sqlstate), expect(ctx, conn, 7, "SELECT $1::int", 7)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func transaction(ctx context.Context) error {
	return with(ctx, "sslmode=disable", func(conn *pgx.Conn) error {
		insert, count := "INSERT INTO "+table+" VALUES (1)", "SELECT count(*)::int FROM "+table
		if _, err := conn.Exec(ctx, "CREATE TABLE "+table+" (n int)"); err != nil {
			return err
		}
		undo := errors.New("undo")
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert)
			return errors.Join(err, undo)
		})
		if !errors.Is(err, undo) {
			return err
		}
		if err := expect(ctx, conn, 0, count); err != nil {
			return err
		}
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insert); err != nil {
				return err
			}
			inner := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT 1/0")
				return err
			})
			return failsWith(inner, "22012")
		})
		if err := errors.Join(err, expect(ctx, conn, 1, count)); err != nil {
			return err
		}
		_, err = conn.Exec(ctx, "DROP TABLE "+table)
		return err
	})
}

func tls(ctx context.Context) error {
	return with(ctx, "sslmode=require", func(conn *pgx.Conn) error { return expect(ctx, conn, 1, "SELECT 1") })
}

func large(ctx context.Context) error {
	return with(ctx, "sslmode=disable", func(conn *pgx.Conn) error {
		var text string
		if err := conn.QueryRow(ctx, "SELECT repeat('x', 5000000)").Scan(&text); err != nil || len(text) != 5_000_000 {
			return fmt.Errorf("%d bytes: %w", len(text), err)
		}
		if err := expect(ctx, conn, 3_000_000, "SELECT length($1)", strings.Repeat("y", 3_000_000)); err != nil {
			return err
		}
		rows, err := conn.Query(ctx, "SELECT n, md5(n::text) FROM generate_series(1, 20000) n")
		if err != nil {
			return err
		}
		count := 0
		for rows.Next() {
			count++
		}
		if count != 20_000 {
			return fmt.Errorf("%d rows: %w", count, rows.Err())
		}
		return rows.Err()
	})
}

func parameters(ctx context.Context) error {
	var conns []*pgx.Conn
	for number := range 6 {
		name := fmt.Sprintf("at-login-%d", number)
		conn, err := open(ctx, "sslmode=disable&application_name="+name)
		if err != nil {
			return err
		}
		defer conn.Close(context.Background())
		if err := expect(ctx, conn, name, "SHOW application_name"); err != nil {
			return err
		}
		if _, err := conn.Exec(ctx, fmt.Sprintf("SET application_name = 'set-%d'", number)); err != nil {
			return err
		}
		conns = append(conns, conn)
	}
	for range 5 {
		for number, conn := range conns {
			err := expect(ctx, conn, fmt.Sprintf("set-%d", number), "SHOW application_name")
			local := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SET LOCAL search_path = pg_catalog")
				return errors.Join(err, expect(ctx, tx, "pg_catalog", "SHOW search_path"))
			})
			if err := errors.Join(err, local); err != nil {
				return err
			}
		}
	}
	return nil
}
