// What posix_spawn() is told about a child, freed at the end. Thread: any.
#pragma once

#include <fcntl.h>
#include <spawn.h>

#include <csignal>

namespace ivy {

struct SpawnSetup {
  SpawnSetup() {
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  // The child has /dev/null there.
  void open_null(int number) {
    posix_spawn_file_actions_addopen(&actions, number, "/dev/null", O_RDWR, 0);
  }
  // The child has a copy of `fd` there. Also where both are the same: close-on-exec is cleared.
  void copy(int fd, int number) { posix_spawn_file_actions_adddup2(&actions, fd, number); }
  // The child inherits nothing from this number on.
  void close_from(int number) { posix_spawn_file_actions_addclosefrom_np(&actions, number); }
  // The child blocks no signal, has the default for each, and a session of its own, so that Ctrl-C
  // at our terminal does not reach it.
  void set_signals_and_session() {
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(&attributes,
                             POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace ivy
