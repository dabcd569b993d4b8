# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=bundle.run -DUNPACK=program -DZSTD=program -DLEVEL=9 -DFILES=a;b -P make_bundle.cmake: a tar of these files
# without their directories, with nothing in it that depends on when and by whom it was made, compressed, behind the
# program that decompresses it. OUT.sha256 holds the SHA-256 of all, that of the compressed tar, where it begins, and
# the size of all.
set(directory ${OUT}.new)
file(REMOVE_RECURSE ${directory})
file(MAKE_DIRECTORY ${directory})
set(names)
foreach(file IN LISTS FILES)
  get_filename_component(name ${file} NAME)
  file(COPY ${file} DESTINATION ${directory})
  file(CHMOD ${directory}/${name} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE
       GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  list(APPEND names ${name})
endforeach()
list(SORT names)
# Hosts compare the sizes at each start: the names, then what wc says of them.
string(REPLACE ";" " " listed "${names}")
execute_process(COMMAND sh -c "LC_ALL=C; export LC_ALL; echo $(wc -c ${listed})" WORKING_DIRECTORY ${directory}
                OUTPUT_VARIABLE sizes COMMAND_ERROR_IS_FATAL ANY)
file(WRITE ${directory}/sizes "${listed}\n${sizes}")
list(APPEND names sizes)
list(SORT names)
execute_process(
  COMMAND tar --create --file=${OUT}.tar --format=ustar --sort=name --owner=0 --group=0
          --numeric-owner --mtime=@0 --directory=${directory} ${names}
  COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${directory})
execute_process(COMMAND ${ZSTD} -q -f -${LEVEL} ${OUT}.tar -o ${OUT}.tar.zst COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -E cat ${UNPACK} ${OUT}.tar.zst OUTPUT_FILE ${OUT} COMMAND_ERROR_IS_FATAL ANY)
file(SHA256 ${OUT} sha256)
file(SHA256 ${OUT}.tar.zst archive_sha256)
file(SIZE ${UNPACK} begin)
file(SIZE ${OUT} size)
file(WRITE ${OUT}.sha256 "${sha256} ${archive_sha256} ${begin} ${size}\n")
file(REMOVE ${OUT}.tar ${OUT}.tar.zst)
