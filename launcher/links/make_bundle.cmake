# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=bundle.run -DUNPACK=program -DZSTD=program -DLEVEL=9 -DFILES=a;b [-DBUILD_NAME=build_name.cc]
#   -P make_bundle.cmake
# Makes the bundle: the program that decompresses, followed by a compressed tar of these files without their
# directories. Its content does not depend on the time or the user. OUT.sha256 holds the SHA-256 of the bundle, the
# SHA-256 of the compressed tar, the offset of the tar, the size of the bundle, and the build's name from BUILD_NAME
# (proto/build_name.cmake).
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
# The file `sizes`, which hosts check at each start: the names, then the output of wc for them.
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
set(build)
if(BUILD_NAME)
  file(STRINGS ${BUILD_NAME} line REGEX build_name)
  string(REGEX REPLACE ".*\"(.*)\".*" " \\1" build "${line}")
endif()
file(WRITE ${OUT}.sha256 "${sha256} ${archive_sha256} ${begin} ${size}${build}\n")
file(REMOVE ${OUT}.tar ${OUT}.tar.zst)
