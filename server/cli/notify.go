package cli

import (
	"net"
	"os"
)

// Notify tells systemd about this process, such as "READY=1" (sd_notify). Without
// NOTIFY_SOCKET, which systemd sets for Type=notify, it does nothing.
func Notify(state string) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"}); err == nil {
		_, _ = conn.Write([]byte(state))
		_ = conn.Close()
	}
}
