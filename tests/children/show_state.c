// SPDX-License-Identifier: Apache-2.0
// Prints its inherited state: signal sets, descriptors, session, limits, working directory.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static void print_signal_sets(void) {
  FILE* status = fopen("/proc/self/status", "r");
  char line[4096];
  while (status && fgets(line, sizeof line, status)) {
    if (strncmp(line, "SigBlk:", 7) == 0 || strncmp(line, "SigIgn:", 7) == 0) fputs(line, stdout);
  }
  if (status) fclose(status);
}

static void print_descriptors(void) {
  DIR* directory = opendir("/proc/self/fd");
  if (!directory) return;
  int highest = -1, count = 0;
  for (struct dirent* entry; (entry = readdir(directory));) {
    int fd = atoi(entry->d_name);
    if (entry->d_name[0] == '.' || fd == dirfd(directory)) continue;
    if (fd > highest) highest = fd;
    ++count;
  }
  closedir(directory);
  printf("descriptors %d highest %d\n", count, highest);
}

static int at_hard_limit(int resource) {
  struct rlimit limit;
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur == limit.rlim_max;
}

int main(void) {
  print_signal_sets();
  print_descriptors();
  printf("group leader %d in its parent's session %d\n", getpgid(0) == getpid(),
         getsid(0) == getsid(getppid()));
  printf("memlock at hard limit %d\n", at_hard_limit(RLIMIT_MEMLOCK));
  char directory[4096];
  printf("cwd %s\n", getcwd(directory, sizeof directory));
  char target[256] = {0};
  if (readlink("/proc/self/fd/0", target, sizeof target - 1) > 0) printf("stdin %s\n", target);
  return 0;
}
