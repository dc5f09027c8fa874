package fleet_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPyroscopeAnswersWhatItWasSent pushes a program's profile to a Pyroscope as Alloy does, and asks for each of its
// values: each call stack has what it was sent with.
func TestPyroscopeAnswersWhatItWasSent(t *testing.T) {
	path, err := exec.LookPath("pyroscope")
	if err != nil {
		t.Skip("pyroscope, Grafana's server, is not in PATH")
	}
	address := startPyroscope(t, path)
	sent := served(t, program(t), "/debug/gpumem/profile").Body.Bytes()
	want, err := profile.ParseData(sent)
	require.NoError(t, err)

	type label struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	type sample struct {
		RawProfile string `json:"rawProfile"`
		ID         string `json:"ID"`
	}
	type series struct {
		Labels  []label  `json:"labels"`
		Samples []sample `json:"samples"`
	}
	push, err := json.Marshal(map[string][]series{"series": {{
		// Without the third label, it would store the differences of what only rises.
		[]label{{"__name__", "memory"}, {"service_name", "trainer-gpu"}, {"__delta__", "false"}},
		[]sample{{base64.StdEncoding.EncodeToString(sent), "3f0c6d5e-7d42-4a8e-9c3b-0d9f2f6b7a11"}},
	}}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := ask(address, "push.v1.PusherService/Push", "application/json", push)
		return err == nil
	}, time.Minute, 200*time.Millisecond)

	for i, value := range want.SampleType {
		id := fmt.Sprintf("memory:%s:%s:%s:%s", value.Type, value.Unit, want.PeriodType.Type, want.PeriodType.Unit)
		var query []byte // a SelectMergeProfileRequest
		for n, text := range []string{id, `{service_name="trainer-gpu"}`} {
			query = append(query, byte(n+1)<<3|2, byte(len(text)))
			query = append(query, text...)
		}
		for n, at := range []time.Time{time.Now().Add(-time.Hour), time.Now().Add(time.Hour)} {
			query = binary.AppendUvarint(append(query, byte(n+3)<<3), uint64(at.UnixMilli()))
		}
		answer, err := ask(address, "querier.v1.QuerierService/SelectMergeProfile", "application/proto", query)
		require.NoError(t, err)
		got, err := profile.ParseData(answer)
		require.NoError(t, err, id)
		require.Len(t, got.SampleType, 1)
		assert.NotEmpty(t, byStack(want, i))
		assert.Equal(t, byStack(want, i), byStack(got, 0), id)
	}
}

// byStack sums a value by call stack, as functions and lines. What is 0 is left out.
func byStack(p *profile.Profile, value int) map[string]int64 {
	sums := make(map[string]int64)
	for _, s := range p.Sample {
		stack := ""
		for _, at := range s.Location {
			for _, line := range at.Line {
				stack += fmt.Sprintf("%s %s:%d\n", line.Function.Name, line.Function.Filename, line.Line)
			}
		}
		if s.Value[value] != 0 {
			sums[stack] += s.Value[value]
		}
	}
	return sums
}

// startPyroscope starts a server with all that it needs in a folder of the test.
func startPyroscope(t *testing.T, path string) (address string) {
	t.Helper()
	port := func() string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer listener.Close()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		require.NoError(t, err)
		return port
	}
	listen := port()
	var log bytes.Buffer
	cmd := exec.Command(path, "-server.http-listen-address=127.0.0.1", "-server.http-listen-port="+listen, "-server.grpc-listen-address=127.0.0.1",
		"-server.grpc-listen-port="+port(), "-memberlist.bind-port="+port(), "-pyroscopedb.data-path=data", "-self-profiling.disable-push", "-usage-stats.enabled=false")
	for _, part := range []string{"compactor.ring.instance-addr", "distributor.ring.instance-addr", "ingester.lifecycler.addr", "overrides-exporter.ring.instance-addr", "query-frontend.instance-addr", "query-scheduler.ring.instance-addr", "store-gateway.sharding-ring.instance-addr"} {
		cmd.Args = append(cmd.Args, "-"+part+"=127.0.0.1") // or they look for each other at another address
	}
	cmd.Dir = t.TempDir()
	cmd.Stdout, cmd.Stderr = &log, &log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return "127.0.0.1:" + listen
}

// ask calls a function of the server by the protocol of connectrpc.com.
func ask(address, function, kind string, request []byte) ([]byte, error) {
	answer, err := http.Post("http://"+address+"/"+function, kind, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", function, answer.Status, body)
	}
	return body, err
}
