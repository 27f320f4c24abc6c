/* The ranks' end of the benchmark's control socket: a rank says who it is, then carries out one
 * line of words at a time and answers with one. Between commands it is blocked in recv() and costs
 * nothing. C and C++; the other end is tests/bench/team.py. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { kControlLineBytes = 512 };

static inline double control_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static inline void control_die(const char* what) {
  fprintf(stderr, "benchmark worker: %s: %s\n", what, strerror(errno));
  exit(1);
}

static inline void control_send(int fd, const char* line) {
  size_t left = strlen(line);
  while (left > 0) {
    const ssize_t sent = send(fd, line, left, MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) control_die("cannot answer");
    if (sent < 0) continue;
    line += sent;
    left -= (size_t)sent;
  }
}

/* Connects to $HVL_BENCH_SOCKET as rank `rank` of team $HVL_BENCH_TEAM. Exits on failure. */
static inline int control_connect(int rank) {
  const char* path = getenv("HVL_BENCH_SOCKET");
  const char* team = getenv("HVL_BENCH_TEAM");
  struct sockaddr_un address;
  char hello[kControlLineBytes];
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  if (!path || !team || strlen(path) >= sizeof(address.sun_path)) {
    fprintf(stderr, "this program is started by tests/dev bench\n");
    exit(2);
  }
  memcpy(address.sun_path, path, strlen(path));
  if (fd < 0 || connect(fd, (struct sockaddr*)&address, sizeof(address)) != 0) control_die(path);
  snprintf(hello, sizeof(hello), "hello %s %d %d\n", team, rank, (int)getpid());
  control_send(fd, hello);
  return fd;
}

/* Waits for a line and returns 1 with it (without its newline), or 0 when the benchmark has ended.
 */
static inline int control_next(int fd, char line[kControlLineBytes]) {
  size_t length = 0;
  for (;;) {
    const ssize_t got = recv(fd, line + length, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return 0;
    if (line[length] == '\n') break;
    if (++length == kControlLineBytes) control_die("command too long");
  }
  line[length] = '\0';
  return 1;
}

/* Answers with seconds per iteration. */
static inline void control_reply(int fd, double seconds) {
  char line[kControlLineBytes];
  snprintf(line, sizeof(line), "ok %.9g\n", seconds);
  control_send(fd, line);
}
