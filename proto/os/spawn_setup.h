// SPDX-License-Identifier: Apache-2.0
// Owns the attributes and file actions of a posix_spawn() call. Thread: any.
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

  // Opens /dev/null as this descriptor in the child.
  void open_null(int number) {
    posix_spawn_file_actions_addopen(&actions, number, "/dev/null", O_RDWR, 0);
  }
  // Makes `fd` the descriptor `number` of the child. If both are equal, clears close-on-exec.
  void copy(int fd, int number) { posix_spawn_file_actions_adddup2(&actions, fd, number); }
  // Closes all descriptors from this number on in the child.
  void close_from(int number) { posix_spawn_file_actions_addclosefrom_np(&actions, number); }
  // Gives the child an empty signal mask, default handlers and a new session, so that Ctrl-C at
  // ivyrun's terminal does not reach it.
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
