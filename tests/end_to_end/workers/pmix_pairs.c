// A PMIx client without MPI: ranks 0 and 2, and 1 and 3, synchronize in pairs three times and read
// the values of the other rank.
#include <pmix.h>
#include <stdio.h>
#include <string.h>

static pmix_proc_t self;

static int failed(const char* what, pmix_status_t status) {
  printf("rank %u: %s: %s\n", self.rank, what, PMIx_Error_string(status));
  return 1;
}

static int meet(pmix_rank_t other, int turn) {
  char key[32];
  snprintf(key, sizeof key, "turn%d", turn);
  pmix_value_t own = {.type = PMIX_UINT32, .data.uint32 = self.rank * 10 + turn}, *read = NULL;
  pmix_status_t status = PMIx_Put(PMIX_GLOBAL, key, &own);
  if (status == PMIX_SUCCESS) status = PMIx_Commit();
  if (status != PMIX_SUCCESS) return failed("put", status);
  pmix_proc_t pair[2] = {self, self};
  pair[turn % 2].rank = other;  // The order of the ranks does not matter.
  pmix_info_t collect;
  bool yes = true;
  PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
  status = PMIx_Fence(pair, 2, &collect, 1);
  if (status != PMIX_SUCCESS) return failed("fence", status);
  status = PMIx_Get(&pair[turn % 2], key, NULL, 0, &read);
  if (status != PMIX_SUCCESS) return failed("get", status);
  printf("rank %u reads %u\n", self.rank, read->data.uint32);
  return 0;
}

int main(void) {
  const pmix_status_t status = PMIx_Init(&self, NULL, 0);
  if (status != PMIX_SUCCESS) return failed("init", status);
  int code = 0;
  for (int turn = 0; turn < 3 && code == 0; ++turn) code = meet((self.rank + 2) % 4, turn);
  PMIx_Finalize(NULL, 0);
  return code;
}
