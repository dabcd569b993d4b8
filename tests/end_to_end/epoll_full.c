// SPDX-License-Identifier: Apache-2.0
/* Preloaded: while the file $EPOLL_FULL exists, no further Unix socket can be watched, as if the
 * kernel's limit of watches were reached. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

int epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event* event) {
  static int (*real)(int, int, int, struct epoll_event*);
  if (real == NULL)
    real = (int (*)(int, int, int, struct epoll_event*))dlsym(RTLD_NEXT, "epoll_ctl");
  const char* path = getenv("EPOLL_FULL");
  int domain = 0;
  socklen_t length = sizeof domain;
  if (operation == EPOLL_CTL_ADD && path != NULL && access(path, F_OK) == 0 &&
      getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX) {
    errno = ENOSPC;
    return -1;
  }
  return real(epoll, operation, descriptor, event);
}
